"""What every run from tasks to a report has, whatever its tasks are: AutoRL and MCP-RL are made of it.

In the order of a run: its settings, its folder, attempts, the course (before, training, after), the
comparison with its interval, the report.
"""
