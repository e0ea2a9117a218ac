"""Scores by weighted criteria: `art.rewards.Rubric`."""
