"""Several machines, real, simulated or virtual."""
