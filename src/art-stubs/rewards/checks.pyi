# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.judge_checks.alarms import Alarm as Alarm
from art_extensions.judge_checks.calibration import Calibration as Calibration
from art_extensions.judge_checks.calibration import CalibrationGroup as CalibrationGroup
from art_extensions.judge_checks.calibration import calibrate as calibrate
from art_extensions.judge_checks.watch import JudgeChecks as JudgeChecks
from art_extensions.judge_checks.watch import JudgeWatch as JudgeWatch

__all__ = ["Alarm", "Calibration", "CalibrationGroup", "JudgeChecks", "JudgeWatch", "calibrate"]

