"""The matrix of faults: what is done to which component in which phase of a run, and how the run ends."""
