"""Conversations as supervised training: rows, files, schedules."""
