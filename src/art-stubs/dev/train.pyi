# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.backend import EarlierTrainOptions as TrainConfig
from art.compat.dev import TrainSFTConfig as TrainSFTConfig

__all__ = ["TrainConfig", "TrainSFTConfig"]

