# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.runs.comparison import Comparison as Comparison
from art.runs.comparison import Estimate as Estimate
from art.runs.comparison import compare as compare
from art_extensions.scenarios.autorl.autorl_run import AutoRLReport as AutoRLReport
from art_extensions.scenarios.autorl.autorl_run import AutoRLSettings as AutoRLSettings
from art_extensions.scenarios.autorl.autorl_run import rollout as rollout
from art_extensions.scenarios.autorl.preparation import Inputs as Inputs
from art_extensions.scenarios.autorl.preparation import generate_inputs as generate_inputs
from art_extensions.scenarios.autorl.preparation import write_rubric as write_rubric
from art_extensions.scenarios.autorl.preparation import write_system_prompt as write_system_prompt
from art_extensions.scenarios.autorl.verbs import prepare as prepare
from art_extensions.scenarios.autorl.verbs import train as train

__all__ = ["AutoRLReport", "AutoRLSettings", "Comparison", "Estimate", "Inputs", "compare", "generate_inputs", "prepare", "rollout", "train", "write_rubric", "write_system_prompt"]

