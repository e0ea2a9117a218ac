"""Every sampled token, written down once, and the conversations that are continued from it."""
