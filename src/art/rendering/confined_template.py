"""Chat templates of strangers, rendered by a helper process under limits: in the server a loop has no end.

A template is sandboxed wherever it is rendered: it reads nothing of the machine. What it may use up, time and
memory, is bounded here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from art.process.bounded import Bounded, LimitExceededError, WorkLimits, WorkRefusedError
from art.process.imports import import_lock

LIMITS = WorkLimits(cpu_s=2, wall_s=30.0, memory_bytes=256 << 20, output_bytes=16 << 20)
"""What one rendering may use."""


@lru_cache(maxsize=1)
def template_helper() -> Bounded:
    """The one helper of this process."""
    return Bounded(__name__, bytes, LIMITS)


def render_confined(
    template: str, messages: Sequence[Any], tools: Sequence[Any] | None, arguments: Mapping[str, Any]
) -> str:
    """Returns the output of a template. Raises: ValueError if it rejects the messages, or exceeds a limit."""
    task = orjson.dumps([template, list(messages), tools, dict(arguments)], option=orjson.OPT_NON_STR_KEYS)
    try:
        return template_helper().ask(task).decode("utf-8", "surrogatepass")
    except WorkRefusedError as error:
        raise ValueError(str(error)) from error
    except LimitExceededError as error:
        raise ValueError(f"the chat template exceeds what a rendering may use, {error.limit}") from error
    except OSError as error:
        raise ValueError(f"the chat template could not be rendered: {error}") from error


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """Returns the function that renders templates; runs in the helper."""
    with import_lock:
        from jinja2.exceptions import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

    def render(task: bytes) -> bytes:
        template, messages, tools, arguments = orjson.loads(task)
        try:
            written, _ = render_jinja_template([messages], tools=tools, chat_template=template, **arguments)
        except (TemplateError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise WorkRefusedError(str(error)) from error
        return str(written[0]).encode("utf-8", "surrogatepass")

    return render
