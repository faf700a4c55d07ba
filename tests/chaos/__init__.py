"""Tools that disturb publication and count failures that users would notice: `python -m
tests.chaos`.
"""
