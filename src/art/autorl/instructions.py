"""The system prompt of the model that learns, and the rubric of its judge, written by a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from art.autorl.prompts import SOURCE, ask_for_rubric, ask_for_system_prompt
from art.runs.generator import generator_channel

if TYPE_CHECKING:
    from art.runs.generator import Generator

EXAMPLES = 5
LONGEST = 8000


async def write_system_prompt(
    task_description: str, *, generator: Generator, examples: Sequence[str] = (), seed: int = 0
) -> str:
    """A system prompt for the task. examples: some inputs. Raises LlmError, ConfigurationError."""
    asked = ask_for_system_prompt(task_description, examples[:EXAMPLES], salt=f"system_prompt/{seed}")
    return await generator_channel(generator, source=SOURCE).ask_json(
        asked, lambda said: _text(said, "system_prompt")
    )


async def write_rubric(
    task_description: str, *, generator: Generator, examples: Sequence[str] = (), seed: int = 0
) -> str:
    """What a judge of the task goes by. examples: some inputs. Raises LlmError, ConfigurationError."""
    asked = ask_for_rubric(task_description, examples[:EXAMPLES], salt=f"rubric/{seed}")
    return await generator_channel(generator, source=SOURCE).ask_json(
        asked, lambda said: _text(said, "rubric")
    )


def _text(said: Any, name: str) -> str:
    """Raises ValueError for anything but a text with something in it."""
    text = said.get(name) if isinstance(said, dict) else said
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        text = "\n".join(text)  # bullet points as a list
    if not isinstance(text, str) or not 0 < len(text.strip()) <= LONGEST:
        raise ValueError(f'"{name}" must be a text of 1 to {LONGEST} characters')
    return text.strip()
