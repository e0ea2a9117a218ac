"""A weather service over a shipped data set: `python -m art.mcp.servers.weather`.

`art/nano-mcp` learns to work with it; `tasks` has scenarios for it, and `truth` knows how well one was done.
"""
