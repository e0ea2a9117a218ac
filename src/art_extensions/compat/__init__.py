"""What programs for older releases import and the loop does not need: logs as tables, small functions."""
