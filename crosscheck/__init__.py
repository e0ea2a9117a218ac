"""Cross-checks of the algorithms against other trainers, each in its own environment. `make crosscheck`."""
