"""A judge checked while it trains: self-agreement, a hold-out, length, calibration, alarms."""

from __future__ import annotations

from art.rewards.checks.alarms import Alarm
from art.rewards.checks.calibration import Calibration, CalibrationGroup, calibrate
from art.rewards.checks.judge_checks import JudgeChecks
from art.rewards.checks.watch import JudgeWatch

__all__ = ["Alarm", "Calibration", "CalibrationGroup", "JudgeChecks", "JudgeWatch", "calibrate"]
