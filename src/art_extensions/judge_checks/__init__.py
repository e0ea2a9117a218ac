"""`art.rewards.JudgeChecks`: a judge watched while it trains, with alarms; and its calibration."""
