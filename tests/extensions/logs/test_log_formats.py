"""Records of other programs, as their documentation shows them, are read as the same call."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import ConfigurationError
from art_extensions.logs.logged_calls import LeftOut, LoggedCall, LoggedScore
from art_extensions.logs.request_logs import FORMATS, CallFilter, LogImport, read_log

ASKED: dict[str, Any] = {"role": "user", "content": "Weather in Paris?"}
CALL = {
    "id": "call_VSPy",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"location": "Paris"}'},
}
CALLING: dict[str, Any] = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_VSPy", "content": "rainy, 57°F"}
SAID: dict[str, Any] = {"role": "assistant", "content": "It is rainy."}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}
FUNCTION: Any = TOOL["function"]
REQUEST = {
    "model": "gpt-4",
    "messages": [ASKED, CALLING, RESULT],
    "tools": [TOOL],
    "tool_choice": "auto",
    "metadata": {"prompt_id": "weather"},
}
RESPONSE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "gpt-4-0613",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "message": {**SAID, "refusal": None, "annotations": [], "tool_calls": None},
        }
    ],
}


def attributes(**facts: Any) -> list[dict[str, Any]]:
    """As OTLP's JSON encoding has them (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding")."""

    def value(one: Any) -> dict[str, Any]:
        if isinstance(one, list):
            return {"arrayValue": {"values": [value(item) for item in one]}}
        return {"intValue": str(one)} if isinstance(one, int) else {"stringValue": one}

    return [{"key": name, "value": value(one)} for name, one in facts.items()]


def spans(*found: dict[str, Any]) -> dict[str, Any]:
    shared = {"traceId": "4bf9", "name": "chat gpt-4", "kind": 3, "startTimeUnixNano": "1700000000000000000"}
    made = [{**shared, "spanId": f"0{number}", **one} for number, one in enumerate(found)]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": made}]}]}


def semantic_span() -> dict[str, Any]:
    """opentelemetry.io, semantic conventions 1.38, examples of LLM calls."""
    given = [
        {"role": "user", "parts": [{"type": "text", "content": ASKED["content"]}]},
        {
            "role": "assistant",
            "parts": [
                {
                    "type": "tool_call",
                    "id": "call_VSPy",
                    "name": "get_weather",
                    "arguments": {"location": "Paris"},
                }
            ],
        },
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "call_VSPy", "response": "rainy, 57°F"}],
        },
    ]
    told = [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": SAID["content"]}],
            "finish_reason": "stop",
        }
    ]
    facts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4",
        "prompt_id": "weather",
        "gen_ai.input.messages": json.dumps(given),
        "gen_ai.output.messages": json.dumps(told),
        "gen_ai.tool.definitions": json.dumps([{"type": "function", **FUNCTION}]),
        "llm.invocation_parameters": json.dumps({"tool_choice": "auto"}),
    }
    return {"attributes": attributes(**facts)}


def openinference_span() -> dict[str, Any]:
    """github.com/Arize-ai/openinference, spec/semantic_conventions.md and spec/tool_calling.md."""
    asked, told = "llm.input_messages", "llm.output_messages.0.message"
    call = f"{asked}.1.message.tool_calls.0.tool_call"
    facts = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt-4",
        "llm.invocation_parameters": json.dumps({"tool_choice": "auto", "temperature": 0}),
        "metadata": json.dumps({"prompt_id": "weather"}),
        "input.value": "...",
        f"{asked}.0.message.role": "user",
        f"{asked}.0.message.content": ASKED["content"],
        f"{asked}.1.message.role": "assistant",
        f"{call}.id": "call_VSPy",
        f"{call}.function.name": "get_weather",
        f"{call}.function.arguments": '{"location": "Paris"}',
        f"{asked}.2.message.role": "tool",
        f"{asked}.2.message.content": "rainy, 57°F",
        f"{asked}.2.message.tool_call_id": "call_VSPy",
        f"{told}.role": "assistant",
        f"{told}.content": SAID["content"],
        "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    }
    return {"attributes": attributes(**facts)}


def openllmetry_span() -> dict[str, Any]:
    """github.com/traceloop/openllmetry, instrumentation of openai 0.40, shared/chat_wrappers.py."""
    facts = {
        "llm.request.type": "chat",
        "gen_ai.request.model": "gpt-4",
        "prompt_id": "weather",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": ASKED["content"],
        "gen_ai.prompt.1.role": "assistant",
        "gen_ai.prompt.1.tool_calls.0.id": "call_VSPy",
        "gen_ai.prompt.1.tool_calls.0.name": "get_weather",
        "gen_ai.prompt.1.tool_calls.0.arguments": '{"location": "Paris"}',
        "gen_ai.prompt.2.role": "tool",
        "gen_ai.prompt.2.content": "rainy, 57°F",
        "gen_ai.prompt.2.tool_call_id": "call_VSPy",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": SAID["content"],
        "gen_ai.completion.0.finish_reason": "stop",
        "llm.request.functions.0.name": "get_weather",
        "llm.request.functions.0.description": FUNCTION["description"],
        "llm.request.functions.0.parameters": json.dumps(FUNCTION["parameters"]),
        "llm.invocation_parameters": json.dumps({"tool_choice": "auto"}),
    }
    return {"attributes": attributes(**facts)}


def events_span() -> dict[str, Any]:
    """Events of the conventions up to 1.36, as Azure's AI inference client writes them on spans."""

    def event(name: str, body: Any) -> dict[str, Any]:
        return {"name": name, "attributes": attributes(**{"gen_ai.event.content": json.dumps(body)})}

    told = [
        event("gen_ai.user.message", ASKED),
        event("gen_ai.assistant.message", CALLING),
        event("gen_ai.tool.message", {"id": "call_VSPy", "content": "rainy, 57°F"}),
        event("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": SAID}),
    ]
    facts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4",
        "prompt_id": "weather",
        "gen_ai.tool.definitions": json.dumps([TOOL]),
        "llm.invocation_parameters": json.dumps({"tool_choice": "auto"}),
    }
    return {"attributes": attributes(**facts), "events": told}


def log_record() -> dict[str, Any]:
    """opentelemetry.io, semantic conventions 1.38, event gen_ai.client.inference.operation.details."""
    told = {
        "eventName": "gen_ai.client.inference.operation.details",
        "timeUnixNano": "1700000000000000000",
        "traceId": "4bf9",
        "spanId": "00",
        **semantic_span(),
    }
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": [told]}]}]}


def content_events_span() -> dict[str, Any]:
    """Events of the conventions 1.27: one with all messages, one with the reply."""
    asked, told = json.dumps(REQUEST["messages"]), json.dumps([SAID])
    events = [
        {"name": "gen_ai.content.prompt", "attributes": attributes(**{"gen_ai.prompt": asked})},
        {"name": "gen_ai.content.completion", "attributes": attributes(**{"gen_ai.completion": told})},
    ]
    return {**events_span(), "events": events}


def langfuse_row(**other: Any) -> dict[str, Any]:
    """langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields, enriched observations."""
    return {
        "id": "obs-1",
        "trace_id": "trace-1",
        "type": "GENERATION",
        "parent_observation_id": "",
        "start_time": "2023-11-14 22:13:20.000000",
        "name": "chat",
        "metadata": {"prompt_id": "weather"},
        "level": "DEFAULT",
        "input": json.dumps({"messages": REQUEST["messages"], "tools": [TOOL]}),
        "output": json.dumps(SAID),
        "provided_model_name": "gpt-4",
        "model_parameters": '{"tool_choice":"auto"}',
        "tool_calls": [],
        "tool_definitions": {},
        "tags": ["production"],
        **other,
    }


SAMPLES: dict[str, tuple[str, Any]] = {
    # docs.openpipe.ai/features/request-logs/exporting-logs
    "OpenPipe's export": (
        "openpipe",
        {"input": {**REQUEST, "metadata": None}, "output": RESPONSE, "tags": {"prompt_id": "weather"}},
    ),
    # docs.openpipe.ai/api-reference/post-report
    "OpenPipe's report": (
        "openpipe",
        {
            "requestedAt": 1_700_000_000_000,
            "receivedAt": 1_700_000_001_000,
            "reqPayload": json.dumps(REQUEST),
            "respPayload": json.dumps(RESPONSE),
            "statusCode": 200,
            "errorMessage": "",
            "tags": {},
        },
    ),
    "a request and its response": ("openai", {"request": REQUEST, "response": RESPONSE}),
    # developers.openai.com/api/reference, batch: the lines of input and output, joined by custom_id
    "bodies, as in a batch": (
        "openai",
        {
            "custom_id": "1",
            "request": {"method": "POST", "url": "/v1/chat/completions", "body": REQUEST},
            "response": {"status_code": 200, "request_id": "r", "body": RESPONSE},
        },
    ),
    # developers.openai.com/api/reference, "List Chat Completions", with "Get chat messages"
    "a stored completion": (
        "stored",
        {**RESPONSE, "model": "gpt-4", **{name: REQUEST[name] for name in REQUEST if name != "model"}},
    ),
    # docs.litellm.ai/docs/proxy/logging_spec, StandardLoggingPayload
    "LiteLLM's standard payload": (
        "litellm",
        {
            "id": "chatcmpl-1",
            "trace_id": "t",
            "call_type": "acompletion",
            "status": "success",
            "startTime": 1_700_000_000.0,
            "model": "gpt-4",
            "metadata": {"prompt_id": "weather", "user_api_key_hash": None},
            "request_tags": [],
            "messages": REQUEST["messages"],
            "response": RESPONSE,
            "error_str": None,
            "model_parameters": {"tools": [TOOL], "tool_choice": "auto"},
        },
    ),
    # developers.openai.com/api/docs/guides/supervised-fine-tuning, "Formatting your data"
    "a row for fine-tuning": (
        "messages",
        {
            "messages": [*REQUEST["messages"], SAID],
            "tools": [TOOL],
            "tool_choice": "auto",
            "model": "gpt-4",
            "created": 1_700_000_000,
            "metadata": {"prompt_id": "weather"},
        },
    ),
    "OpenTelemetry's attributes": ("otlp", spans(semantic_span())),
    "OpenTelemetry's older events": ("otlp", spans(events_span())),
    "OpenTelemetry's oldest events": ("otlp", spans(content_events_span())),
    "OpenTelemetry's log records": ("otlp", log_record()),
    "OpenInference": ("otlp", spans(openinference_span())),
    "OpenLLMetry": ("otlp", spans(openllmetry_span())),
    "Langfuse's blob export": ("langfuse", langfuse_row()),
    # langfuse.com/faq/all/export-single-trace-or-session: a trace, its observations and its scores
    "Langfuse's trace": (
        "langfuse",
        {
            "id": "trace-1",
            "tags": ["production"],
            "observations": [
                {
                    "id": "obs-1",
                    "traceId": "trace-1",
                    "type": "GENERATION",
                    "startTime": "2023-11-14T22:13:20.000Z",
                    "model": "gpt-4",
                    "metadata": {"prompt_id": "weather"},
                    "modelParameters": {"tool_choice": "auto"},
                    "input": {"messages": REQUEST["messages"], "tools": [TOOL]},
                    "output": SAID,
                }
            ],
            "scores": [],
        },
    ),
}


def read(path: Path, *documents: Any, format: str = "auto") -> list[Any]:
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    return list(read_log(path, format))


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("asked", ["auto", "by its name"])
def test_each_format_is_the_same_call(tmp_path: Path, sample: str, asked: str) -> None:
    format, document = SAMPLES[sample]
    (call,) = read(tmp_path / "log.jsonl", document, format="auto" if asked == "auto" else format)
    assert isinstance(call, LoggedCall), call
    assert call.messages == [ASKED, CALLING, RESULT]
    assert [reply.message for reply in call.replies] == [SAID]
    assert call.tools == [TOOL] and call.tool_choice == "auto" and call.model == "gpt-4"
    assert call.time == 1_700_000_000 and call.tags["prompt_id"] == "weather"
    assert call.where.startswith(f"{tmp_path / 'log.jsonl'}, line 1")


def test_every_format_has_a_sample() -> None:
    assert {format for format, _ in SAMPLES.values()} == set(FORMATS)


@pytest.mark.parametrize("written", ["lines", "array", "indented array", "one object", "zipped"])
def test_a_file_is_lines_an_array_or_an_object(tmp_path: Path, written: str) -> None:
    documents = [langfuse_row(id=f"obs-{number}") for number in range(3)]
    path = tmp_path / ("log.json.gz" if written == "zipped" else "log.json")
    if written == "one object":
        documents = [{"data": documents, "meta": {"page": 1}}]
        path.write_text("\n" + json.dumps(documents[0], indent=2))
    elif written == "zipped":
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, documents)).encode()))
    elif written == "lines":
        path.write_text("\ufeff" + "\n\n".join(map(json.dumps, documents)))
    else:
        path.write_text(json.dumps(documents, indent=2 if written == "indented array" else None))
    found = list(read_log(path))
    assert [type(one) for one in found] == [LoggedCall] * 3
    assert [one.keys[0] for one in found if isinstance(one, LoggedCall)] == [
        f"span:trace-1/obs-{number}" for number in range(3)
    ]


def test_images_thoughts_and_several_choices_of_a_span_are_read(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "content": "What is this?"},
        {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "https://example.org/a.png"},
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGk="},
    ]
    told = [
        {
            "role": "assistant",
            "parts": [{"type": "reasoning", "content": "Hm."}, {"type": "text", "content": answer}],
            "finish_reason": "stop",
        }
        for answer in ("A logo.", "A picture.")
    ]
    facts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": parts}]),
        "gen_ai.output.messages": json.dumps(told),
    }
    (call,) = read(tmp_path / "log.jsonl", spans({"attributes": attributes(**facts)}))
    assert call.messages == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
    ]
    assert [reply.message for reply in call.replies] == [
        {"role": "assistant", "reasoning_content": "Hm.", "content": answer}
        for answer in ("A logo.", "A picture.")
    ]


def test_functions_of_older_requests_become_tools(tmp_path: Path) -> None:
    call = {"name": "get_weather", "arguments": '{"location": "Paris"}'}
    request = {
        "messages": [
            ASKED,
            {"role": "assistant", "content": None, "function_call": call},
            {**RESULT, "role": "function"},
        ],
        "functions": [FUNCTION],
    }
    (found,) = read(tmp_path / "log.jsonl", {"request": request, "response": RESPONSE})
    made = {"type": "function", "function": call}
    assert found.messages == [ASKED, {"role": "assistant", "tool_calls": [made]}, RESULT]
    assert found.tools == [TOOL]


def test_calls_of_other_shapes_are_read_or_told(tmp_path: Path) -> None:
    def answer(calls: list[Any]) -> Any:
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        document = {"request": REQUEST, "response": {"choices": [{"message": message}]}}
        return read(tmp_path / "log.jsonl", document)[0]

    custom = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    told = {"id": "call_VSPy", "name": "get_weather", "args": {"location": "Paris"}, "type": "tool_call"}
    assert answer([told, custom]).replies[0].message["tool_calls"] == [CALL, custom]
    for wrong in ("get_weather", {"id": "c"}):
        left_out = answer([wrong])
        assert left_out.broken and "names no function" in left_out.detail


def test_what_a_model_said_in_json_is_a_text(tmp_path: Path) -> None:
    row = langfuse_row(input=json.dumps([ASKED]), output='{"answer": 4}')
    (call,) = read(tmp_path / "log.jsonl", row)
    assert call.replies[0].message == {"role": "assistant", "content": '{"answer": 4}'}


def test_calls_and_tools_that_langfuse_keeps_beside_the_texts_are_read(tmp_path: Path) -> None:
    beside = {
        "tool_calls": [json.dumps({"id": "c", "name": "get_weather", "arguments": '{"location": "Paris"}'})],
        "tool_definitions": {
            "get_weather": json.dumps({name: FUNCTION[name] for name in FUNCTION if name != "name"})
        },
    }
    row = langfuse_row(input=json.dumps([ASKED]), output='{"content": "One moment."}', **beside)
    (call,) = read(tmp_path / "log.jsonl", row)
    assert call.tools == [TOOL]
    assert call.replies[0].message == {
        "role": "assistant",
        "content": "One moment.",
        "tool_calls": [{"id": "c", "type": "function", "function": CALL["function"]}],
    }


def test_scores_name_the_calls_that_they_are_of(tmp_path: Path) -> None:
    scores = [
        {
            "id": "s",
            "trace_id": "trace-1",
            "observation_id": None,
            "name": "helpful",
            "value": 1,
            "data_type": "BOOLEAN",
        },
        {"id": "t", "trace_id": "trace-1", "observation_id": "obs-1", "name": "right", "value": 0.5},
        {"id": "u", "trace_id": "trace-1", "name": "words", "value": 0, "data_type": "TEXT"},
    ]
    call, *found = read(tmp_path / "log.jsonl", langfuse_row(), *scores)
    assert found == [
        LoggedScore("trace:trace-1", "helpful", 1),
        LoggedScore("span:trace-1/obs-1", "right", 0.5),
    ]
    assert {one.key for one in found} <= set(call.keys)


OTHER_RECORDS: dict[str, tuple[Any, str, bool]] = {
    "a failed request": (
        {"request": REQUEST, "response": {"error": {"message": "busy"}}},
        "failed request",
        False,
    ),
    "an answer of status 429": (
        {"reqPayload": REQUEST, "respPayload": "{}", "statusCode": 429},
        "failed request",
        False,
    ),
    "the Responses API": (
        {"request": {"model": "m", "input": "Hi"}, "response": {"output": []}},
        "not a chat completion",
        False,
    ),
    "a text completion": (
        {"request": REQUEST, "response": {"choices": [{"text": "hi"}]}},
        "not a chat completion",
        False,
    ),
    "pieces of a stream": (
        {"request": REQUEST, "response": [{"object": "chat.completion.chunk"}]},
        "unreadable record",
        True,
    ),
    "an unknown speaker": (
        {"request": {"messages": [{"role": "narrator", "content": "x"}]}, "response": RESPONSE},
        "unreadable record",
        True,
    ),
    "a span of a tool": (
        spans({"attributes": attributes(**{"gen_ai.operation.name": "execute_tool"})}),
        "not a model call",
        False,
    ),
    "a span of a database": (
        spans({"attributes": attributes(**{"db.system": "sqlite"})}),
        "not a model call",
        False,
    ),
    "a span without texts": (
        spans({"attributes": attributes(**{"gen_ai.operation.name": "chat"})}),
        "texts were not recorded",
        False,
    ),
    "a span that failed": (
        spans({**semantic_span(), "status": {"code": 2, "message": "timeout"}}),
        "failed request",
        False,
    ),
    "another observation": (langfuse_row(type="SPAN"), "not a model call", False),
    "a generation that failed": (langfuse_row(level="ERROR", output=""), "failed request", False),
    "a generation without texts": (langfuse_row(input="", output=""), "texts were not recorded", False),
    "a conversation without a reply": ({"messages": [ASKED]}, "unreadable record", True),
}


@pytest.mark.parametrize("kind", OTHER_RECORDS)
def test_a_record_without_a_usable_call_says_why(tmp_path: Path, kind: str) -> None:
    document, reason, broken = OTHER_RECORDS[kind]
    (found,) = read(tmp_path / "log.jsonl", document)
    assert isinstance(found, LeftOut) and (found.reason, found.broken) == (reason, broken)
    assert found.where.startswith(f"{tmp_path / 'log.jsonl'}, line 1")
    assert found.detail


def test_broken_lines_are_told_with_their_numbers_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    good = json.dumps({"request": REQUEST, "response": RESPONSE})
    path.write_bytes(
        b"\n".join([b'{"request": ', good.encode(), b'{"a": "\xff"}', b'{"other": 1}', good.encode()])
    )
    found = list(read_log(path))
    assert [type(one) for one in found] == [LeftOut, LoggedCall, LeftOut, LeftOut, LoggedCall]
    broken = [one for one in found if isinstance(one, LeftOut)]
    assert [(one.where, one.reason) for one in broken] == [
        (f"{path}, line 1", "broken line"),
        (f"{path}, line 3", "broken line"),
        (f"{path}, line 4", "unknown format"),
    ]
    assert all(one.broken and one.detail for one in broken) and "'other'" in broken[2].detail


def test_an_array_that_breaks_off_gives_what_is_before_it(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    text = json.dumps([langfuse_row(), langfuse_row()], indent=1)
    path.write_text(text[: len(text) - 40])
    call, broken = read_log(path)
    assert isinstance(call, LoggedCall) and isinstance(broken, LeftOut)
    begins = text[: text.index("{", text.index("},\n {"))].count("\n") + 1
    assert broken.where == f"{path}, line {begins}" and broken.broken


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(way for name, inner in items for way in places(inner, (*above, name)))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.slow
@given(st.data())
def test_no_record_of_another_shape_stops_an_import(tmp_path_factory: Any, data: st.DataObject) -> None:
    format, document = SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))]
    changed = json.loads(json.dumps(document))
    *above, last = data.draw(st.sampled_from(places(changed)[1:]))
    holder = changed
    for name in above:
        holder = holder[name]
    holder[last] = data.draw(JSON)
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_text(json.dumps(document) + "\n" + json.dumps(changed) + "\n")
    for to in ("sft", "scenarios"):
        made = LogImport([path], to=to, format=format, keep="all", wanted=CallFilter(until=1e11))
        rows = list(made.rows())
        assert 1 <= len(rows) <= 4
        for row in rows:
            json.dumps(row)


def test_an_unknown_file_is_told_what_was_seen_and_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with pytest.raises(ConfigurationError, match=r"line 1.*'question', 'answer'") as error:
        read(path, {"question": "x", "answer": "y"})
    assert all(f"  {name} " in str(error.value) for name in FORMATS)
    with pytest.raises(ConfigurationError, match="did you mean 'openpipe'"):
        list(read_log(path, "openpip"))
    with pytest.raises(ConfigurationError, match="is no file"):
        list(read_log(tmp_path / "none.jsonl"))
