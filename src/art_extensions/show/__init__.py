"""`art show`: logged trajectories in the terminal."""
