# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.compat.dev import EngineArgs as EngineArgs
from art.compat.dev import OpenAIServerConfig as OpenAIServerConfig
from art.compat.dev import ServerArgs as ServerArgs
from art_extensions.compat.dev_config import get_openai_server_config as get_openai_server_config

__all__ = ["EngineArgs", "OpenAIServerConfig", "ServerArgs", "get_openai_server_config"]

