"""What programs for older releases import and the loop does not need: aggregates of logs, their charts."""
