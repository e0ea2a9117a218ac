"""`art eval`: rollouts of one checkpoint, scored, and compared with those of another."""
