"""`art replay`: a recorded training step is done again, and compared with what it was."""
