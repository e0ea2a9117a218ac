"""What is kept of a model: its folder, its metrics and costs, its trajectory log; sinks: the trackers."""
