"""Hostile input by the thousand: what trt-build does with files that nobody wrote in good faith."""
