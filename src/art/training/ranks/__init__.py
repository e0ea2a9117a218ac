"""Several trainer processes as one: a plan dealt to ranks, gradients summed, a base kept in shards."""
