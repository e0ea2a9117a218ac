"""A box of a cloud, through SkyPilot: started, reached through ssh, copied home from, and ended."""
