"""A score for each turn of a trajectory, from a judge."""
