# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.langgraph.chat_model_factory import init_chat_model as init_chat_model
from art_extensions.langgraph.graph_rollout import wrap_rollout as wrap_rollout

__all__ = ["init_chat_model", "wrap_rollout"]

