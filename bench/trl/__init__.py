"""TRL as a peer: scripts that run in its own environment, and what starts them from here."""
