"""Trackers that a model's rows are reported to: one tracker, one file; `registry` knows them by name."""
