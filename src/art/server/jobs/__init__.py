"""Training jobs: kept, queued, run, and what each kind makes of its request."""
