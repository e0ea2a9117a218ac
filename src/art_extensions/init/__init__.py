"""`art init`: a project skeleton that runs as it is."""
