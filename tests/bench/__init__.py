"""Measured figures, as ratios from one run: ``make bench``. Nothing here asserts a time."""
