"""Scores by weighted criteria: `art.rewards.Rubric`; how a judge is asked many questions at once."""
