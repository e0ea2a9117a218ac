"""Trackers of other projects that a model's rows are reported to: one tracker, one file."""
