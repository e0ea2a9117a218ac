"""Rewards from a tournament: a judge sees two trajectories at a time."""
