"""Trackers of other projects that rows of a run are reported to: one tracker, one file."""
