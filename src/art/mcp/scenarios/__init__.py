"""Tasks for the tools of a server: written, checked, measured, split."""
