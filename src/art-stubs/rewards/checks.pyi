# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.rewards.judge_checks import Alarm as Alarm
from art.rewards.judge_checks import Calibration as Calibration
from art.rewards.judge_checks import CalibrationGroup as CalibrationGroup
from art.rewards.judge_checks import JudgeChecks as JudgeChecks
from art.rewards.judge_checks import calibrate as calibrate
from art.rewards.judge_watch import JudgeWatch as JudgeWatch

__all__ = ["Alarm", "Calibration", "CalibrationGroup", "JudgeChecks", "JudgeWatch", "calibrate"]

