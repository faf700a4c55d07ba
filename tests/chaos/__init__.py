"""Tools that disturb publication and count what users would notice: `python -m tests.chaos`."""
