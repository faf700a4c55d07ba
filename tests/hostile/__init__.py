"""Thousands of hostile inputs, which trt-build must refuse or handle without harm."""
