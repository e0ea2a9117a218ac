"""The chat model of LangGraph agents, at the import path that programs know."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.capture.recorder import Recorder
from art.langgraph.endpoint import CURRENT_CONFIG as CURRENT_CONFIG
from art.langgraph.factory import init_chat_model as init_chat_model
from art.langgraph.logging import FileLogger
from art.langgraph.wrapping import wrap_rollout as wrap_rollout
from art.trajectories import Trajectory

if TYPE_CHECKING:
    from art.langgraph.logged import LoggingLLM as LoggingLLM

__all__ = [
    "CURRENT_CONFIG",
    "LoggingLLM",
    "add_thread",
    "create_messages_from_logs",
    "init_chat_model",
    "wrap_rollout",
]

LOGS = Path(".art") / "langgraph"


def add_thread(thread: str, base_url: str, api_key: str, model: str) -> str:
    """Send this context's calls to an endpoint and log them under the thread's name; returns the log's path.

    For programs that run graphs without `wrap_rollout`: what `init_chat_model`'s model says from here on is
    written to `.art/langgraph/{thread}.jsonl`, for `create_messages_from_logs`.
    """
    logger = FileLogger(LOGS / f"{thread}.jsonl")
    CURRENT_CONFIG.set({"logger": logger, "base_url": base_url, "api_key": api_key, "model": model})
    return str(logger.path)


def create_messages_from_logs(log_path: str, trajectory: Trajectory) -> Trajectory:
    """Write the conversations of a log into the trajectory: the first is the main one, others are additional
    histories. Raises pydantic's ValidationError for a line that is no completion.
    """
    from openai.types.chat import ChatCompletion

    heard = Trajectory()
    recorder = Recorder(heard)
    for line in FileLogger(log_path).load_logs():
        recorder.hear(line["request"], ChatCompletion.model_validate(line["completion"]))
    for field in ("messages_and_choices", "tools", "additional_histories"):
        setattr(trajectory, field, getattr(heard, field))
    return trajectory


def __getattr__(name: str) -> Any:
    if name == "LoggingLLM":
        return import_module("art.langgraph.logged").LoggingLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
