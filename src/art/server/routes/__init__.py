"""The control routes of `art.wire`, and what they share."""
