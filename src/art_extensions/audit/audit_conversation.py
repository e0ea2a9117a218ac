"""The chat format of a model over several turns, as its template and its renderer write it.

A template may rewrite the history; then ART cannot go on from the ids that were sampled.

A `Verdict` is one line of an audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from art.errors import ARTError
from art.process.imports import import_lock
from art.rendering.library import LibraryRenderer


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditVerdict:
    """`pass`: it holds. `note`: it does not, and ART works round it. `fail`: mend it before you train."""

    level: Literal["pass", "note", "fail"]
    check: str
    what: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


Messages = list[dict[str, Any]]

THOUGHT = "Perhaps it rains."
ANSWER = "It is sunny."
WRITTEN = '{"days":1.0,  "city":"Zürich"}'
"""Arguments as a model may write them: no template spells them so by itself."""
QUESTION: Messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The weather?"}]
NEXT: Messages = [{"role": "user", "content": "And tomorrow?"}]
RESULT: Messages = [{"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "sun"}]
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": WRITTEN}}
    ],
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Forecast.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "number"}},
                "required": ["city"],
            },
        },
    }
]


def template_verdicts(tokenizer: Any) -> Iterator[AuditVerdict]:
    """Yields verdicts on how the model's own chat template renders an assistant's turn of the history.

    Never a failure by itself: ids are taken from the ledger, and only new messages are rendered.
    """
    if not tokenizer.chat_template:
        yield AuditVerdict(level="note", check="template", what="the tokenizer has no chat template")
        return
    plain, thinking = ANSWER, f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
    try:
        yield _append_only(tokenizer, plain)
        yield _keeps_thinking(tokenizer, thinking)
    except ValueError as error:
        yield AuditVerdict(
            level="fail", check="template", what=f"refuses a system, user, assistant, user talk: {error}"
        )


def renderer_verdicts(renderer: LibraryRenderer) -> Iterator[AuditVerdict]:
    """Yields verdicts on the server's renderer, and on whether it continues sampled ids without rewriting
    them.
    """
    yield AuditVerdict(level="pass", check="renderer", what=renderer.kind)
    yield _shows_tools(renderer)
    if renderer.kind == "GenericToolsRenderer":
        yield AuditVerdict(
            level="note",
            check="tool format",
            what="the template knows no tools: they are rendered in ART's generic format",
        )
    yield _bridges(renderer, AuditTurn(name="bridging: plain", reply=ANSWER))
    yield _bridges(
        renderer, AuditTurn(name="bridging: thinking", reply=f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}")
    )
    spelled = _spelled_call(renderer)
    if spelled is None:
        yield AuditVerdict(
            level="note",
            check="tool calls",
            what="the chat format knows no tools, or rewrites turns with calls",
        )
        return
    yield _arguments(spelled)
    yield _bridges(
        renderer,
        AuditTurn(name="bridging: tool calls", reply=spelled, after=tuple(RESULT), tools=tuple(TOOLS)),
    )


def _shows_tools(renderer: LibraryRenderer) -> AuditVerdict:
    """An agent whose tools are not in its prompt is trained without them."""
    check, function = "tools", TOOLS[0]["function"]
    try:
        prompt = renderer.decode(renderer.render(QUESTION, TOOLS))
    except (ARTError, ValueError, TypeError) as error:
        return AuditVerdict(level="fail", check=check, what=f"a request with tools is refused: {error}")
    if function["name"] in prompt and "city" in prompt:
        return AuditVerdict(level="pass", check=check, what="the model is shown a request's tools")
    return AuditVerdict(
        level="fail",
        check=check,
        what="the model is not shown a request's tools: an agent would be trained without them",
        remedy='set a chat template that renders `tools`, or take out "tool_format": "template"',
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditTurn:
    """An assistant's turn as sampled, and what follows it."""

    name: str
    reply: str
    after: Sequence[dict[str, Any]] = tuple(NEXT)
    tools: Sequence[dict[str, Any]] | None = None


def _append_only(tokenizer: Any, reply: str) -> AuditVerdict:
    before = _text(tokenizer, QUESTION)
    after = _text(tokenizer, [*QUESTION, {"role": "assistant", "content": reply}, *NEXT])
    if after.startswith(before + reply):
        return AuditVerdict(level="pass", check="template: append-only", what="a new turn only adds text")
    at = next((n for n, (a, b) in enumerate(zip(before + reply, after, strict=False)) if a != b), 0)
    return AuditVerdict(
        level="note",
        check="template: append-only",
        what=f"a new turn rewrites what was sampled: {after[at : at + 40]!r} instead of "
        f"{(before + reply)[at : at + 40]!r}",
    )


def _keeps_thinking(tokenizer: Any, reply: str) -> AuditVerdict:
    after = _text(tokenizer, [*QUESTION, {"role": "assistant", "content": reply}, *NEXT])
    if THOUGHT in after:
        return AuditVerdict(level="pass", check="template: thinking", what="stays in the history")
    return AuditVerdict(level="note", check="template: thinking", what="is stripped from earlier turns")


def _text(tokenizer: Any, messages: Messages) -> str:
    """Raises ValueError when the template refuses the messages."""
    with import_lock:
        from jinja2.exceptions import TemplateError

    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise ValueError(str(error)) from error


def _bridges(renderer: LibraryRenderer, turn: AuditTurn) -> AuditVerdict:
    """Extends the ids of a prompt and a reply to the next prompt, every one of them unchanged."""
    tools = list(turn.tools) if turn.tools else None
    try:
        prompt = renderer.render(QUESTION, tools)
        completion = [*renderer.encode(turn.reply), renderer.stop_token_ids[0]]
        bridged = renderer.bridge(prompt, completion, list(turn.after), tools)
        message = {"role": "assistant", "content": ANSWER} if turn.tools is None else CALL
        full = renderer.render([*QUESTION, message, *turn.after], tools)
    except (ARTError, IndexError) as error:
        return AuditVerdict(level="fail", check=turn.name, what=f"cannot be rendered: {error}")
    if bridged is None:
        return AuditVerdict(
            level="fail",
            check=turn.name,
            what="no: the template rewrites history, so every turn is rendered anew and starts a branch",
            remedy="name a renderer of this family as 'art_renderer' in tokenizer_config.json",
        )
    tail = bridged[len(prompt) + len(completion) :]
    if not tail or full[-len(tail) :] != tail:
        return AuditVerdict(
            level="fail",
            check=turn.name,
            what=f"new messages are written {renderer.decode(tail)!r}, which no full rendering ends with",
            remedy="name another renderer as 'art_renderer' in tokenizer_config.json",
        )
    return AuditVerdict(level="pass", check=turn.name, what="exact: sampled ids stay, new messages follow")


def _spelled_call(renderer: LibraryRenderer) -> str | None:
    """Returns an assistant's turn with a tool call in this format, without its end."""
    try:
        before = renderer.render(QUESTION, TOOLS)
        after = renderer.render([*QUESTION, CALL, *RESULT], TOOLS)
    except ARTError:
        return None
    stops = set(renderer.stop_token_ids)
    if "get_weather" not in renderer.decode(before) or after[: len(before)] != before:
        return None
    rest = after[len(before) :]
    end = next((n for n, token in enumerate(rest) if token in stops), len(rest))
    return renderer.decode(rest[:end])


def _arguments(spelled: str) -> AuditVerdict:
    if WRITTEN in spelled:
        return AuditVerdict(level="pass", check="tool arguments", what="stay as the model wrote them")
    return AuditVerdict(
        level="note",
        check="tool arguments",
        what=f"are written anew when rendered ({WRITTEN!r} becomes part of {spelled[-80:]!r}); "
        "the ids of the ledger are used instead",
    )
