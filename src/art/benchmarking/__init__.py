"""Trajectories of several models side by side: as a table, as numbers, as charts."""
