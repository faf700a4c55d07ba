"""The modules of the model.py beside this folder. They are published with every model that the
Python runtime serves. They import nothing of trt-build and run on Python 3.8, the version of images
up to 23.04.
"""
