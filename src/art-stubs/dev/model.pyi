# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.compat.dev import EngineArgs as EngineArgs
from art.compat.dev import InitArgs as InitArgs
from art.compat.dev import InternalModelConfig as InternalModelConfig
from art.compat.dev import PeftArgs as PeftArgs
from art.compat.dev import TinkerArgs as TinkerArgs
from art.compat.dev import TinkerNativeArgs as TinkerNativeArgs
from art.compat.dev import TinkerTrainingClientArgs as TinkerTrainingClientArgs
from art.compat.dev import TorchtuneArgs as TorchtuneArgs
from art.compat.dev import TrainerArgs as TrainerArgs
from art_extensions.compat.dev_config import get_model_config as get_model_config

__all__ = ["EngineArgs", "InitArgs", "InternalModelConfig", "PeftArgs", "TinkerArgs", "TinkerNativeArgs", "TinkerTrainingClientArgs", "TorchtuneArgs", "TrainerArgs", "get_model_config"]

