"""Logs of other programs as rows or scenarios."""
