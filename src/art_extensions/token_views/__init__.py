"""Trajectories as conversations of each dialect, as arrays of tokens, and as compact JSON."""
