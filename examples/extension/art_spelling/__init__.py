"""An environment, a tracker and a command that ART finds by the entry points in `pyproject.toml`."""
