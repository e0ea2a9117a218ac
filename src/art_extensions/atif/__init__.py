"""Trajectories in ATIF, the format of trajectories that Harbor, OpenEnv and their agents write."""
