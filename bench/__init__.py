"""Benchmarks: each compares ART with what a user would use instead, side by side in one run. `make bench`."""
