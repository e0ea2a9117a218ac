# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.backend import EarlierTrainOptions as TrainConfig
from art.client.options.dedicated_gpus import is_dedicated_mode as is_dedicated_mode
from art.client.options.dedicated_gpus import validate_dedicated_config as validate_dedicated_config
from art.compat.dev import EngineArgs as EngineArgs
from art.compat.dev import InitArgs as InitArgs
from art.compat.dev import InternalModelConfig as InternalModelConfig
from art.compat.dev import OpenAIServerConfig as OpenAIServerConfig
from art.compat.dev import PeftArgs as PeftArgs
from art.compat.dev import ServerArgs as ServerArgs
from art.compat.dev import TinkerArgs as TinkerArgs
from art.compat.dev import TinkerNativeArgs as TinkerNativeArgs
from art.compat.dev import TinkerTrainingClientArgs as TinkerTrainingClientArgs
from art.compat.dev import TorchtuneArgs as TorchtuneArgs
from art.compat.dev import TrainSFTConfig as TrainSFTConfig
from art.compat.dev import TrainerArgs as TrainerArgs
from art_extensions.compat.dev_config import get_model_config as get_model_config
from art_extensions.compat.dev_config import get_openai_server_config as get_openai_server_config

__all__ = ["EngineArgs", "InitArgs", "InternalModelConfig", "OpenAIServerConfig", "PeftArgs", "ServerArgs", "TinkerArgs", "TinkerNativeArgs", "TinkerTrainingClientArgs", "TorchtuneArgs", "TrainConfig", "TrainSFTConfig", "TrainerArgs", "get_model_config", "get_openai_server_config", "is_dedicated_mode", "validate_dedicated_config"]

