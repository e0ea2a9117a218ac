"""Agent frameworks whose programs become rollouts."""
