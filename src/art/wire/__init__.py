"""The JSON shapes that cross a process: one file for each conversation."""
