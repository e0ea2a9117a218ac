"""What a process has from the one that started it: environment variables, and its end.

Nothing else on the client's side reads the environment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

API_KEY = "ART_API_KEY"
"""The key of an ART server."""
BASE_URL = "ART_BASE_URL"
"""The address of an ART server."""
WANDB_API_KEY = "WANDB_API_KEY"
"""Its presence turns on Weights & Biases runs where a model does not say otherwise."""
TRACKED_TRAJECTORIES = "ART_TRACKED_TRAJECTORIES"
"""How many trajectories of a row its trackers are shown; unset: none."""
TRACKED_CHECKPOINTS = "ART_TRACKED_CHECKPOINTS"
"""Whether trackers that keep files get the adapter of each step: 1, or 0; unset: 0."""
CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Whether spans of OpenTelemetry have the texts of messages, by its conventions."""
OTEL_SERVICE_NAME = "OTEL_SERVICE_NAME"
"""The name of the program in its spans."""
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The GPUs that a process was given, by their numbers."""
BACKUP_BUCKET = "BACKUP_BUCKET"
"""The bucket of pushes and pulls that name none."""
ANTHROPIC_API_KEY = "ANTHROPIC_API_KEY"
"""The keys of those whose models judge and generate."""
DEEPSEEK_API_KEY = "DEEPSEEK_API_KEY"
FIREWORKS_API_KEY = "FIREWORKS_API_KEY"
GEMINI_API_KEY = "GEMINI_API_KEY"
GROQ_API_KEY = "GROQ_API_KEY"
MISTRAL_API_KEY = "MISTRAL_API_KEY"
OPENAI_API_KEY = "OPENAI_API_KEY"
OPENROUTER_API_KEY = "OPENROUTER_API_KEY"
TOGETHER_API_KEY = "TOGETHER_API_KEY"
XAI_API_KEY = "XAI_API_KEY"
JUDGE_API_KEY = "ART_JUDGE_API_KEY"
"""The key of the address that a command line gives for a judge, and for a generator."""
GENERATOR_API_KEY = "ART_GENERATOR_API_KEY"
OPENAI_BASE_URL = "OPENAI_BASE_URL"
"""Where `openai/...` answers, if not at its usual address."""
OLLAMA_BASE_URL = "OLLAMA_BASE_URL"
LM_STUDIO_BASE_URL = "LM_STUDIO_BASE_URL"
HOSTED_VLLM_BASE_URL = "HOSTED_VLLM_BASE_URL"
"""Where a model server of one's own answers."""
TOGETHER_BASE_URL = "TOGETHER_BASE_URL"
"""Where together.ai answers, if not at its usual address."""


def variable(name: str) -> str | None:
    """The value of one of the variables above; None when it is unset or empty."""
    return os.environ.get(name) or None


def captures_content() -> bool:
    """Returns whether spans may have the texts of messages."""
    return (variable(CAPTURE_CONTENT) or "").lower() in ("true", "span_only", "span_and_event")


def inherited_variables() -> dict[str, str]:
    """All variables, for a program of others that is started with some more of them."""
    return dict(os.environ)


@contextmanager
def variable_set(name: str, value: str) -> Iterator[None]:
    """Sets a variable for a library that reads what it needs there, and removes it."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies. Elsewhere the end of stdin alone has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
