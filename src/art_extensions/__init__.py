"""What stands around the loop: each folder is an extension that the core finds by its entry points.

Delete any of them, and the loop still runs.
"""
