"""Tests of `builder.analysis`."""
