"""Workers on the machines of a cluster."""
