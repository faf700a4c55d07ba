"""What model.py beside this folder is made of. Published with every model that the Python runtime
serves; nothing of trt-build is imported, and Python 3.8 is enough (images up to 23.04 have no newer
one).
"""
