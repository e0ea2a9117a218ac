"""Model calls in traces: OTLP JSON with the names of any of the conventions that instrumentations use.

gen_ai.input.messages, gen_ai.output.messages       OpenTelemetry's conventions, on spans and on log records
gen_ai.user.message, gen_ai.choice, ...             their older events
llm.input_messages.0.message.role                   OpenInference
gen_ai.prompt.0.role                                OpenLLMetry
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from art_extensions.logs.logged_calls import (
    FAILED,
    NO_CALL,
    NO_TEXTS,
    Document,
    Found,
    LogFormat,
    LoggedCall,
    LoggedReply,
    LoggedScore,
    Message,
    NotUsable,
    first_value,
    has_keys,
    parsed,
    read_call,
    read_message,
    read_messages,
    read_replies,
    read_tools,
    seconds_of,
    shortened,
    tags_of,
    unreadable,
    usable,
)

_CHATS = frozenset({"chat", "generate_content", "text_completion"})
_CAPTURE = "let the program record them: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true"


def read_spans(document: Document, where: str) -> Iterator[Found]:
    """The spans of one export request, or of one line of the collector's file exporter."""
    number = 0
    for resource in first_value(document, ("resourceSpans", "resource_spans", "batches")) or ():
        scopes = first_value(resource, ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")) or ()
        for span in (span for scope in scopes for span in scope.get("spans") or ()):
            place = f"{where}, span {number}"
            yield from usable(place, _span(span, place))
            number += 1
    for resource in first_value(document, ("resourceLogs", "resource_logs")) or ():
        for scope in first_value(resource, ("scopeLogs", "scope_logs")) or ():
            for record in first_value(scope, ("logRecords", "log_records")) or ():
                place = f"{where}, log record {number}"
                yield from usable(place, _span(record, place))
                number += 1


def _span(span: Document, where: str) -> Iterator[Found]:
    facts = _attributes(span.get("attributes"))
    trace, own = first_value(span, ("traceId", "trace_id")), first_value(span, ("spanId", "span_id"))
    parent = first_value(span, ("parentSpanId", "parent_span_id")) or None
    events = [(str(one.get("name")), _attributes(one.get("attributes"))) for one in span.get("events") or ()]
    for name, attributes in events:
        value = attributes.get("gen_ai.evaluation.score.value")
        if name == "gen_ai.evaluation.result" and isinstance(value, int | float):
            for key in (f"span:{trace}/{own}", *(() if parent else (f"trace:{trace}",))):
                yield LoggedScore(key, str(attributes.get("gen_ai.evaluation.name", "score")), float(value))
    operation, kind = facts.get("gen_ai.operation.name"), facts.get("openinference.span.kind")
    if (operation and operation not in _CHATS) or (kind and kind != "LLM"):
        raise NotUsable(NO_CALL, f"a span of kind {operation or kind}")
    texts = _semantic(facts) or _indexed(facts) or _of_events(events)
    if texts is None:
        calls = operation or kind or any(name.startswith(("gen_ai.", "llm.")) for name in facts)
        raise NotUsable(NO_TEXTS, _CAPTURE) if calls else NotUsable(NO_CALL, f"span {span.get('name')!r}")
    if (span.get("status") or {}).get("code") in (2, "STATUS_CODE_ERROR"):
        raise NotUsable(FAILED, shortened(span["status"].get("message")))
    messages, replies = texts
    if not messages or not replies:
        raise NotUsable(NO_TEXTS, _CAPTURE)
    asked = parsed(facts.get("llm.invocation_parameters"))
    models = ("gen_ai.request.model", "llm.model_name", "gen_ai.response.model")
    named = {name: value for name, value in facts.items() if isinstance(value, str | int | float | bool)}
    texts_of = ("gen_ai.prompt", "gen_ai.completion", "gen_ai.input.", "gen_ai.output.", "gen_ai.system_inst")
    others = ("llm.input_messages", "llm.output_messages", "input.value", "output.value", "llm.request.f")
    yield LoggedCall(
        messages=messages,
        replies=replies,
        tools=_span_tools(facts),
        tool_choice=asked.get("tool_choice") if isinstance(asked, Mapping) else None,
        model=first_value(facts, models),
        tags={name: value for name, value in named.items() if not name.startswith((*texts_of, *others))}
        | tags_of(facts.get("metadata"), facts.get("tag.tags")),
        time=seconds_of(first_value(span, ("startTimeUnixNano", "start_time_unix_nano", "timeUnixNano"))),
        keys=(f"span:{trace}/{own}", f"span:{trace}/{parent}", f"trace:{trace}"),
        where=where,
    )


Texts = tuple[list[Message], list[LoggedReply]]


def _attributes(pairs: Any) -> dict[str, Any]:
    given = (
        pairs.items()
        if isinstance(pairs, Mapping)
        else ((one["key"], one.get("value")) for one in pairs or ())
    )
    return {str(name): _attribute(value) for name, value in given}


def _attribute(value: Any) -> Any:
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    ((kind, given),) = value.items()
    kind = kind.lower().replace("_", "")
    if kind == "intvalue":
        return int(given)
    if kind == "arrayvalue":
        return [_attribute(one) for one in given.get("values") or ()]
    return _attributes(given.get("values")) if kind == "kvlistvalue" else given


def _semantic(facts: Document) -> Texts | None:
    """Reads `gen_ai.input.messages` and `gen_ai.output.messages`."""
    inputs, outputs = (parsed(facts.get(f"gen_ai.{way}.messages")) for way in ("input", "output"))
    if inputs is None or outputs is None:
        return None
    instructions = parsed(facts.get("gen_ai.system_instructions"))
    first = _from_parts({"role": "system", "parts": instructions}) if instructions else []
    messages = [made for one in inputs for made in _from_parts(one)]
    return first + messages, [LoggedReply(_from_parts(one)[0], one.get("finish_reason")) for one in outputs]


def _from_parts(message: Document) -> list[Message]:
    """Returns a message of the conventions as OpenAI's: each result of a call is a message of its own."""
    if "parts" not in message:
        return [read_message(message, "a message")]
    content: list[Any] = []
    made: Message = {"role": message.get("role")}
    results: list[Message] = []
    for part in message["parts"] or ():
        kind = part.get("type")
        if kind == "tool_call_response":
            answer = first_value(part, ("response", "result"))
            text = answer if isinstance(answer, str) else json.dumps(answer)
            results.append({"role": "tool", "tool_call_id": part.get("id"), "content": text})
        elif kind == "tool_call":
            made.setdefault("tool_calls", []).append(read_call({"id": part.get("id"), "function": part}))
        elif kind == "reasoning":
            made["reasoning_content"] = made.get("reasoning_content", "") + str(part.get("content", ""))
        else:
            content.append(_content_part(part))
    if results and not content:
        return [read_message(one, "a tool's result") for one in results]
    if len(content) == 1 and content[0].get("type") == "text":
        made["content"] = content[0]["text"]
    elif content or "tool_calls" not in made:
        made["content"] = content or ""
    return [read_message(made, "a message"), *results]


def _content_part(part: Document) -> Message:
    if part.get("type") == "text":
        return {"type": "text", "text": part.get("content", part.get("text", ""))}
    if part.get("type") == "uri" and part.get("modality") == "image":
        return {"type": "image_url", "image_url": {"url": part.get("uri")}}
    if part.get("type") == "blob" and part.get("modality") == "image":
        return {
            "type": "image_url",
            "image_url": {"url": f"data:{part.get('mime_type')};base64,{part['content']}"},
        }
    return dict(part)


def _indexed(facts: Document) -> Texts | None:
    """Reads `llm.input_messages.0.message.role` (OpenInference) and `gen_ai.prompt.0.role` (OpenLLMetry)."""
    for prompt, completion in (
        ("llm.input_messages", "llm.output_messages"),
        ("gen_ai.prompt", "gen_ai.completion"),
        ("llm.prompts", "llm.completions"),
    ):
        inputs, outputs = (_listed(facts, f"{name}.") for name in (prompt, completion))
        if inputs and outputs:
            messages = [_indexed_message(one, "user") for one in inputs]
            return messages, [
                LoggedReply(_indexed_message(one, "assistant"), one.get("finish_reason")) for one in outputs
            ]
    return None


def _listed(facts: Document, prefix: str) -> list[Any]:
    """Returns the list that attributes with numbers in their names spell."""
    tree: dict[str, Any] = {}
    for name, value in facts.items():
        if name.startswith(prefix):
            *above, last = name.removeprefix(prefix).split(".")
            node = tree
            for step in above:
                node = node.setdefault(step, {})
                if not isinstance(node, dict):
                    raise unreadable(f"attribute {name!r} and one of its beginnings both have values")
            node[last] = value
    return _lists(tree) if tree else []


def _lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if tree and all(name.isdecimal() for name in tree):
        return [_lists(tree[name]) for name in sorted(tree, key=int)]
    return {name: _lists(value) for name, value in tree.items()}


def _indexed_message(found: Document, role: str) -> Message:
    message: Message = dict(found.get("message") or found)
    calls = [call.get("tool_call", call) for call in message.pop("tool_calls", ())]
    message.pop("finish_reason", None)
    parts = [part.get("message_content", part) for part in message.pop("contents", ())]
    if parts and "content" not in message:
        message["content"] = [_openinference_part(part) for part in parts]
    content = parsed(message.get("content"))
    if isinstance(content, list) and all(isinstance(one, Mapping) and "type" in one for one in content):
        message["content"] = content
    if calls:
        message["tool_calls"] = [
            read_call({"id": call.get("id"), "function": call.get("function", call)}) for call in calls
        ]
    return read_message({"role": role, **message}, "a message")


def _openinference_part(part: Document) -> Message:
    image = part.get("image")
    if isinstance(image, Mapping):
        image = image.get("image", image)
        return {"type": "image_url", "image_url": {"url": image.get("url")}}
    return {"type": "text", "text": part.get("text", "")}


def _of_events(events: Sequence[tuple[str, Document]]) -> Texts | None:
    """Reads events of a span: one a message, or one with the whole call."""
    messages: list[Message] = []
    replies: list[LoggedReply] = []
    for name, attributes in events:
        texts = _semantic(attributes)
        if texts is not None:
            return texts
        body = parsed(attributes.get("gen_ai.event.content"))
        body = dict(body) if isinstance(body, Mapping) else dict(attributes)
        body |= {key: parsed(body[key]) for key in ("message", "tool_calls") if key in body}
        if name == "gen_ai.choice":
            message = body.get("message", body)
            message = message if isinstance(message, Mapping) else {"content": message}
            fields = {key: message[key] for key in ("role", "content", "tool_calls") if key in message}
            reply = read_message({"role": "assistant", **fields}, name)
            replies.append(LoggedReply(reply, body.get("finish_reason")))
        elif name.startswith("gen_ai.") and name.endswith(".message"):
            role = name.removeprefix("gen_ai.").removesuffix(".message")
            fields = {key: body[key] for key in ("role", "content", "tool_calls") if key in body}
            answered = first_value(body, ("tool_call_id", "id"))
            if role == "tool" and answered:
                fields["tool_call_id"] = answered
            messages.append(read_message({"role": role, **fields}, name))
        elif name == "gen_ai.content.prompt":
            messages += read_messages(attributes.get("gen_ai.prompt"), name)
        elif name == "gen_ai.content.completion":
            replies += read_replies(attributes.get("gen_ai.completion"))
    return (messages, replies) if messages or replies else None


def _span_tools(facts: Document) -> list[Any] | None:
    if defined := parsed(facts.get("gen_ai.tool.definitions")):
        return read_tools(defined)
    tools = [(one.get("tool") or one).get("json_schema") for one in _listed(facts, "llm.tools.")]
    return read_tools(tools) or read_tools(_listed(facts, "llm.request.functions."))


OTLP = LogFormat(
    'OpenTelemetry traces as OTLP JSON: {"resourceSpans": [...]}',
    has_keys(("resourceSpans", "resource_spans", "batches", "resourceLogs", "resource_logs")),
    read_spans,
)
"""Spans, and log records with the attributes of spans."""
