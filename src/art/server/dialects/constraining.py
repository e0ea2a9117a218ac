"""The constraint of a request in the model's own chat format: what text and calls must look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from art.engine.protocol import Constraint
from art.rendering.chat import ChatRenderer, Tool
from art.server.dialects.chat_request import ChatRequest
from art.server.dialects.refusal import refuse


def constraint_of(
    request: ChatRequest, renderer: ChatRenderer, prompt_ids: Sequence[int]
) -> Constraint | None:
    """None: the reply is free.

    Raises: RequestError naming the field that the model's chat format has no grammar for.
    """
    choice, text = request.tool_choice, request.constraint
    tools: list[Tool] = [
        tool
        for tool in request.tools or ()
        if choice.mode != "none" and (choice.names is None or tool["function"]["name"] in choice.names)
    ]
    if choice.mode == "required":
        return _grammar(renderer, prompt_ids, None, tools, request.parallel_calls, "tool_choice")
    if not tools:
        if text is None:
            return None
        return renderer.grammar(prompt_ids, text=text, tools=(), parallel=True) or text
    if text is not None:
        if text.kind == "lark":
            # Whoever writes a grammar writes all of it.
            return text
        return _grammar(renderer, prompt_ids, text, tools, request.parallel_calls, request.constrained_by)
    if choice.names is not None:
        return _grammar(renderer, prompt_ids, "any", tools, request.parallel_calls, "tool_choice")
    if not request.parallel_calls:
        return _grammar(renderer, prompt_ids, "any", tools, False, "parallel_tool_calls")
    return None


def _grammar(
    renderer: ChatRenderer,
    prompt_ids: Sequence[int],
    text: Constraint | Literal["any"] | None,
    tools: Sequence[Tool],
    parallel: bool,
    field: str,
) -> Constraint:
    grammar = renderer.grammar(prompt_ids, text=text, tools=tools, parallel=parallel)
    if grammar is None:
        refuse(
            f"{field} needs a grammar of the calls in this model's chat format, and there is none for "
            f"{renderer.kind}: leave tools out, or leave the choice to the model (tool_choice 'auto', "
            "parallel_tool_calls true, response_format text)",
            field,
            "unsupported_parameter",
        )
    return grammar
