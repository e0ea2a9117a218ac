"""What every process of ART that listens and computes does the same way."""
