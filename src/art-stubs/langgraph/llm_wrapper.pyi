# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.langgraph.chat_model import LoggingLLM as LoggingLLM
from art_extensions.langgraph.chat_model_factory import add_thread as add_thread
from art_extensions.langgraph.chat_model_factory import create_messages_from_logs as create_messages_from_logs
from art_extensions.langgraph.chat_model_factory import init_chat_model as init_chat_model
from art_extensions.langgraph.graph_rollout import CURRENT_CONFIG as CURRENT_CONFIG
from art_extensions.langgraph.graph_rollout import wrap_rollout as wrap_rollout

__all__ = ["CURRENT_CONFIG", "LoggingLLM", "add_thread", "create_messages_from_logs", "init_chat_model", "wrap_rollout"]

