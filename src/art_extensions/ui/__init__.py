"""The pages of `art ui`: runs, steps, groups, rollouts and tokens, from the files of a data folder alone."""
