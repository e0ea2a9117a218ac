"""A set of replicas of one engine, used as one: which of them gets a request, and what a death changes."""
