"""A run: roll out, score, train, log, resume. The parts that all kinds of runs share, and the kinds.

The shared parts, in the order of a run: its settings, its folder, rollouts at tasks, the
training run (rollouts before, training, rollouts after), the comparison with its interval, the report. The
kinds: `pipeline` (rollouts go on while the trainer works) and `quickstart`; an extension has AutoRL and
MCP-RL.
"""
