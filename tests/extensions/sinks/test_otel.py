"""Rollouts and steps arrive at a collector as spans of the GenAI conventions: once each, parents right."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from tests.otlp_collector import Collector, collecting

import art
from art.rewards import Ruler
from art.tracking.folders import ModelPaths
from art.tracking.sinks.registry import deliveries
from art.tracking.step_record import read_rollouts
from art.wire.rollout_record import RolloutRecord
from art.wire.rollouts import CALL_NOTE
from art_extensions.testing import LlmServer, TruthfulJudge
from waiting import until

S = 1_000_000_000
CONVENTIONS = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.delenv(CAPTURE, raising=False)
        yield found


def model_in(folder: Path) -> art.Model:
    return art.Model(name="agent", project="games", base_path=str(folder), report_metrics=["otel"])


def choice(content: str | None, calls: list[dict[str, Any]] | None = None, call: Any = None) -> Choice:
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    fields = {"step": 2, "sample_id": f"s-{len(content or '')}", "completion_tokens": 7}
    told = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message, **fields}
    made = Choice.model_validate(told)
    if call is not None:
        setattr(made, CALL_NOTE, call)  # as the client does
    return made


def told_call(start: float, end: float, **further: Any) -> dict[str, Any]:
    return {"started_at": start, "ended_at": end, "prompt_tokens": 40, **further}


def rollout() -> art.Trajectory:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"word": "secret"}'},
    }
    turns: list[Any] = [
        {"role": "user", "content": "a secret question"},
        choice(None, [call]),
        {"role": "tool", "tool_call_id": "c1", "content": "a secret result"},
        choice("the secret answer", call=told_call(1e9 + 0.25, 1e9 + 1.75)),
    ]
    told = {"metrics": {"duration": 2.0, "right": 1}, "rollout_id": "r-1", "reward": 0.5}
    made = art.Trajectory(messages_and_choices=turns, **told)
    made.start_time = made.start_time.fromtimestamp(1e9)
    return made


async def test_a_rollout_is_a_tree_of_rollout_completions_and_tools(
    tmp_path: Path, collector: Collector
) -> None:
    await model_in(tmp_path).log([art.TrajectoryGroup([rollout()])], step=3)
    (top,), chats, (tool,) = (collector.named(name) for name in ("invoke_agent", "chat", "execute_tool"))
    assert not top.parent and [chat.parent for chat in chats] == [top.id] * 2 and tool.parent == chats[0].id
    assert {span.trace for span in (*chats, tool)} == {top.trace}
    assert len({span.id for span in collector.spans}) == len(collector.spans)
    assert top.end - top.start == 2 * S and all(top.start <= one.start <= one.end <= top.end for one in chats)
    expected = {"art.rollout": "r-1", "art.reward": 0.5, "art.step": 3, "art.split": "val", "art.group": 0}
    assert expected.items() <= top.attributes.items() and top.attributes["art.reward_part.right"] == 1.0
    assert not top.links  # of no training step
    (event,) = top.events
    assert event == (
        "gen_ai.evaluation.result",
        {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.5},
    )
    told = chats[0].attributes
    assert told["gen_ai.operation.name"] == "chat" and told["gen_ai.provider.name"] == "art"
    assert told["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert told["gen_ai.usage.output_tokens"] == 7 and told["art.policy_step"] == 2
    assert told["gen_ai.request.model"] == "agent" and told["gen_ai.response.model"] == "agent@2"
    assert tool.attributes["gen_ai.tool.name"] == "look_up" and tool.attributes["gen_ai.tool.call.id"] == "c1"
    assert collector.schemas == {"https://opentelemetry.io/schemas/1.38.0"}
    assert {one["service.name"] for one in collector.resources} == {"art"}
    assert {one["rl.system"] for one in collector.resources} == {"art"}
    assert all(one["rl.run.id"].endswith(f"/{one['rl.model.name']}") for one in collector.resources)


async def test_resources_name_the_environment_of_a_rollout(tmp_path: Path, collector: Collector) -> None:
    made = [rollout().model_copy(update={"rollout_id": f"r-{number}"}) for number in range(3)]
    made[0].metadata = {"environment": "openenv:http://127.0.0.1:8000"}
    made[1].metadata = {"environment": 7}
    await model_in(tmp_path).log([art.TrajectoryGroup(made)], metrics={"a": 1.0}, step=3)
    named = {}
    for span in collector.spans:
        assert "rl.environment.name" not in span.attributes and "rl.algorithm" not in span.resource
        named.setdefault(span.attributes.get("art.rollout"), []).append(
            span.resource.get("rl.environment.name")
        )
    assert {key: (len(names), {*names}) for key, names in named.items()} == {
        "r-0": (4, {"openenv:http://127.0.0.1:8000"}),
        "r-1": (4, {"7"}),
        "r-2": (4, {None}),
        None: (1, {None}),
    }


@pytest.mark.parametrize("content", ["", "true"])
async def test_a_completion_has_what_its_turn_earned(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv(CAPTURE, content)
    made, model = rollout(), model_in(tmp_path)
    said = [item for item in made.messages_and_choices if not isinstance(item, dict)]
    for number, (turn, reward) in enumerate(zip(said, (0.25, -1.0), strict=True)):
        turn.model_extra["sample_id"] = f"s{number}"
        made.reward_turn(turn, reward, reason=None if number else "It looked \ud800 first.")
    record = RolloutRecord(
        rollout="r-1", group=0, place=0, fate="trained", samples=["s0", "s1"], turn_rewards=[0.25, -1.0],
        turn_returns=[-0.25, -0.5], turn_advantages=[0.5, None],
    )  # fmt: skip
    path = ModelPaths(model._folder()).rollouts(3)
    path.parent.mkdir(parents=True)
    path.write_text(record.line())
    await model.log([art.TrajectoryGroup([made])], step=3)
    first, second = (chat.attributes for chat in collector.named("chat"))
    assert [one["art.turn_reward"] for one in (first, second)] == [0.25, -1.0]
    assert [one["art.turn_return"] for one in (first, second)] == [-0.25, -0.5]
    assert first.get("art.turn_reason") == ("It looked ? first." if content else None)
    assert "art.turn_reason" not in second
    assert first["art.turn_advantage"] == 0.5 and "art.turn_advantage" not in second
    await model.log([art.TrajectoryGroup([rollout().model_copy(update={"rollout_id": "r-2"})])], step=4)
    plain = [chat.attributes for chat in collector.named("chat") if chat.attributes["art.rollout"] == "r-2"]
    assert len(plain) == 2 and not any(name.startswith("art.turn_") for one in plain for name in one)


async def test_completions_and_tools_have_the_times_that_were_noted(
    tmp_path: Path, collector: Collector
) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("noted", "unknown")
    ]
    results = [{"role": "tool", "tool_call_id": name, "content": "1"} for name in ("noted", "unknown")]
    turns: list[Any] = [
        {"role": "user", "content": "?"},
        choice("a", calls, call=told_call(1000.0, 1002.0, tools={"noted": (1002.5, 1003.0)})),
        *results,
        choice("bc", [{**calls[0], "id": "last"}], call=told_call(1005.0, 1006.0)),
        {"role": "tool", "tool_call_id": "last", "content": "2"},
    ]
    told = art.Trajectory(messages_and_choices=turns, rollout_id="r", reward=1.0)
    told.start_time = told.start_time.fromtimestamp(999.0)
    await model_in(tmp_path).log([art.TrajectoryGroup([told])], step=0)
    (top,), chats = collector.named("invoke_agent"), collector.named("chat")
    assert [(one.start, one.end) for one in chats] == [(1000 * S, 1002 * S), (1005 * S, 1006 * S)]
    assert [one.attributes["gen_ai.usage.input_tokens"] for one in chats] == [40, 40]
    assert (top.start, top.end) == (999 * S, 1006 * S)
    tools = {one.attributes["gen_ai.tool.call.id"]: one for one in collector.named("execute_tool")}
    assert {name: (one.start, one.end) for name, one in tools.items()} == {
        "noted": (1002.5 * S, 1003 * S),
        "unknown": (1002 * S, 1005 * S),  # between the completions around it
        "last": (1006 * S, 1006 * S),  # nothing says how long it took
    }
    assert [name for name, one in tools.items() if one.attributes["art.tool.exact_time"]] == ["noted"]


async def test_what_judges_were_asked_is_told_with_links_to_the_rollouts(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    told = [
        art.Trajectory(
            messages_and_choices=[
                {"role": "user", "content": "Name a colour."},
                {"role": "assistant", "content": word},
            ],
            rollout_id=word,
        )
        for word in ("red", "blue")
    ]
    async with LlmServer(TruthfulJudge(lambda messages: float(len(messages[-1]["content"]) == 3))) as server:
        ruler = Ruler("openai/gpt-4.1", base_url=server.base_url, api_key=server.key, cache=False)
        group = await ruler.score_group(art.TrajectoryGroup(told))
        model = model_in(tmp_path)
        for _ in range(2):  # sent once
            await model.log([group], step=0)
    (whole,), chats, tops = (collector.named(name) for name in ("evaluate", "chat", "invoke_agent"))
    assert whole.name == "evaluate ruler" and sorted(whole.links) == sorted(top.id for top in tops)
    assert whole.trace not in {top.trace for top in tops}
    (chat,) = chats
    assert chat.parent == whole.id and whole.start <= chat.start < chat.end <= whole.end
    assert chat.attributes["gen_ai.provider.name"] == "openai" and chat.attributes["art.cached"] is False
    assert chat.attributes["gen_ai.request.model"] == "gpt-4.1"
    totals = ruler.channel.totals
    assert chat.attributes["gen_ai.usage.input_tokens"] == totals.prompt_tokens > 0
    assert chat.attributes["gen_ai.usage.output_tokens"] == totals.completion_tokens > 0
    assert whole.attributes["art.cost_usd"] == chat.attributes["art.cost_usd"] == totals.usd > 0
    (reply,) = json.loads(chat.attributes["gen_ai.output.messages"])
    assert "score" in reply["parts"][0]["content"] and "blue" in chat.attributes["gen_ai.input.messages"]
    assert "gen_ai.agent.name" not in chat.attributes


async def test_a_judge_that_fails_is_a_span_with_its_error_and_no_text_is_kept(
    tmp_path: Path, collector: Collector
) -> None:
    def broken(messages: Any) -> str:
        raise RuntimeError("a secret")

    pair = [art.Trajectory(messages_and_choices=[{"role": "user", "content": "a secret"}]) for _ in range(2)]
    group = await Ruler(broken, cache=False, attempts=1).score_group(art.TrajectoryGroup(pair))
    assert all(isinstance(one.reward, art.Unscored) for one in group)
    assert group._judge_calls and all(one.text is None and not one.messages for one in group._judge_calls)
    await model_in(tmp_path).log([group], step=0)
    chat = collector.named("chat")[0]
    assert chat.error and chat.attributes["error.type"] == "LlmError"
    assert not any(b"a secret" in body for body in collector.bodies)


async def test_names_are_those_of_the_conventions(tmp_path: Path, collector: Collector) -> None:
    await model_in(tmp_path).log([art.TrajectoryGroup([rollout()])], step=0)
    names = {name for span in collector.spans for name in span.attributes if name.startswith("gen_ai.")}
    assert len(names) > 8 and names <= CONVENTIONS


async def test_texts_are_sent_only_when_they_are_asked_for(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    await model_in(tmp_path / "a").log([art.TrajectoryGroup([rollout()])], step=0)
    assert collector.bodies and not any(b"secret" in body for body in collector.bodies)
    collector.spans.clear()
    monkeypatch.setenv(CAPTURE, "true")
    await model_in(tmp_path / "b").log([art.TrajectoryGroup([rollout()])], step=0)
    last, (tool,) = collector.named("chat")[-1].attributes, collector.named("execute_tool")
    roles = [message["role"] for message in json.loads(last["gen_ai.input.messages"])]
    assert roles == ["user", "assistant", "tool"]
    (reply,) = json.loads(last["gen_ai.output.messages"])
    assert reply["parts"] == [{"type": "text", "content": "the secret answer"}]
    assert reply["finish_reason"] == "stop"
    assert tool.attributes["gen_ai.tool.call.result"] == "a secret result"


async def test_parts_of_a_content_have_the_words_of_the_conventions(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    urls = ("data:image/png;base64,aGk=", "https://example.org/a.png")
    images: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    sound = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    content = [{"type": "text", "text": "What is this?"}, *images, sound]
    said = choice("A logo.")
    said.message.reasoning_content = "Hm."  # type: ignore[attr-defined]
    shown = art.Trajectory(messages_and_choices=[{"role": "user", "content": content}, said], reward=1.0)
    await model_in(tmp_path).log([art.TrajectoryGroup([shown])], step=0)
    (chat,) = collector.named("chat")
    (asked,) = json.loads(chat.attributes["gen_ai.input.messages"])
    assert asked["parts"] == [
        {"type": "text", "content": "What is this?"},
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGk="},
        {"type": "uri", "modality": "image", "uri": "https://example.org/a.png"},
        sound,
    ]
    (told,) = json.loads(chat.attributes["gen_ai.output.messages"])
    assert told["parts"] == [
        {"type": "reasoning", "content": "Hm."},
        {"type": "text", "content": "A logo."},
    ]


async def test_a_rollout_is_sent_once_and_has_the_same_ids_in_another_program(
    tmp_path: Path, collector: Collector
) -> None:
    model = model_in(tmp_path)
    for _ in range(2):
        await model.log([art.TrajectoryGroup([rollout()])], step=0)
    assert len(collector.named("invoke_agent")) == 1 and len(collector.named("chat")) == 2
    deliveries().close()  # as the end of a program does
    await model_in(tmp_path).log([art.TrajectoryGroup([rollout()])], step=0)
    first, again = collector.named("invoke_agent")
    assert (first.trace, first.id) == (again.trace, again.id)


@pytest.mark.parametrize("content", ["", "true"])
async def test_failed_and_unscored_rollouts_are_told_as_such(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv(CAPTURE, content)
    unscored = art.Trajectory(reward=art.Unscored("no judge"), rollout_id="u")
    failed = RuntimeError("key sk-12345")
    await model_in(tmp_path).log([art.TrajectoryGroup([unscored, failed])], step=0)
    by_fate = {span.error: span for span in collector.named("invoke_agent")}
    assert "RuntimeError" in by_fate[True].attributes["error.type"]
    assert by_fate[False].attributes["art.unscored"] is True
    assert by_fate[False].attributes.get("art.unscored_reason") == ("no judge" if content else None)
    assert "art.reward" not in by_fate[False].attributes and not by_fate[False].events
    assert not any(b"sk-12345" in body for body in collector.bodies)


SERVICES = {
    "langfuse": (
        "/api/public/otel",
        ("authorization", f"Basic {base64.b64encode(b'pk-lf-1:sk-lf-2').decode()}"),
        {},
    ),
    "weave": ("/otel", ("wandb-api-key", "a-key"), {"wandb.entity": "team", "wandb.project": "games"}),
    "phoenix": ("", ("authorization", "Bearer a-key"), {"openinference.project.name": "games"}),
    "logfire": ("", ("authorization", "write-token"), {}),
}
"""Service -> the path before /v1/traces, the header with the key, and what names the project."""


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_gets_its_path_its_key_and_its_project(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    path, (header, value), project = SERVICES[service]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url + path)
    escaped = value.replace(" ", "%20").replace("=", "%3D")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"{header}={escaped}")
    named = ",".join(f"{name}={text}" for name, text in project.items())
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", named)
    await model_in(tmp_path).log([art.TrajectoryGroup([rollout()])], step=0)
    assert collector.requests and collector.resources
    for sent_to, headers in collector.requests:
        assert sent_to == f"{path}/v1/traces" and headers[header] == value
        assert headers["content-type"] == "application/x-protobuf"
    assert all(project.items() <= resource.items() for resource in collector.resources)
    (chat,) = [one for one in collector.named("chat") if one.end - one.start == 1.5 * S]
    assert {
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 7,
    }.items() <= chat.attributes.items()
    assert not any(value.split()[-1].encode() in body for body in collector.bodies)
    page = (Path(__file__).parents[3] / "docs" / "guides" / "tracing.md").read_text().lower()
    section = page.partition(f"### {service}")[2].partition("###")[0]
    assert path in section and f"{header}=" in section and all(name in section for name in project)


async def test_a_step_of_more_spans_than_a_request_is_sent_whole(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [
        art.Trajectory(messages_and_choices=[choice("yes") for _ in range(30)], rollout_id=f"r{number}")
        for number in range(40)
    ]
    await model_in(tmp_path).log([art.TrajectoryGroup(many)], step=0)
    await until(lambda: len(collector.named("chat")) == 1_200)
    assert len(collector.named("invoke_agent")) == 40


async def ask(model: art.TrainableModel, reward: float) -> art.Trajectory:
    told = art.Trajectory(messages_and_choices=[{"role": "user", "content": "yes or no?"}], reward=reward)
    reply = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=told.messages(), max_tokens=6
    )
    told.messages_and_choices.append(reply.choices[0])
    return told.finish()


@pytest.mark.slow
async def test_a_real_step_tells_fates_advantages_and_its_numbers(
    tmp_path: Path, collector: Collector
) -> None:
    model = art.TrainableModel(name="a", project="p", base_model="art/nano", report_metrics=["otel"])
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        group = await art.TrajectoryGroup([ask(model, reward) for reward in (0.0, 1.0, 1.0)])
        result = await backend.train(model, [group], learning_rate=1e-4, algorithm="rloo")
        await model.log([group], metrics=result.metrics, step=result.step, split="train")
    tops, chats, (step,) = (collector.named(name) for name in ("invoke_agent", "chat", "train_step"))
    assert len(tops) == len(chats) == 3 and {one.parent for one in chats} == {one.id for one in tops}
    records = {one.rollout: one for one in read_rollouts(model._folder(), result.step)}
    assert {one.attributes["art.rollout"] for one in tops} == set(records)
    for top in tops:
        record = records[top.attributes["art.rollout"]]
        assert top.attributes["art.fate"] == record.fate == "trained"
        assert top.attributes["art.advantage"] == pytest.approx(record.advantage)
        (chat,) = [one for one in chats if one.parent == top.id]
        assert [chat.attributes["art.sample"]] == record.samples
        assert chat.attributes["gen_ai.usage.output_tokens"] == record.tokens
        assert chat.attributes["gen_ai.usage.input_tokens"] > 0
        assert top.start <= chat.start < chat.end <= top.end  # as the client measured it
        assert top.links == [step.id]
    assert step.attributes["art.step"] == result.step
    assert {one.resource["rl.algorithm"] for one in (step, *tops, *chats)} == {"rloo"}
    seconds = step.attributes["art.metric.time/step_wall_s"]
    assert (step.end - step.start) / S == pytest.approx(seconds, abs=1e-3) and seconds > 0
    assert step.attributes["art.metric.loss/train"] == pytest.approx(result.metrics["loss/train"])


async def test_texts_that_are_no_utf8_lose_no_batch(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    turns: list[Any] = [{"role": "user", "content": "\ud800\0"}, choice("\u202e")]
    odd = art.Trajectory(messages_and_choices=turns, reward=1.0, rollout_id="odd")
    await model_in(tmp_path).log([art.TrajectoryGroup([odd])], step=0)
    assert collector.named("chat") and collector.named("invoke_agent")


async def test_headers_that_cannot_be_read_are_told_without_their_keys(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A colon in place of the equals sign: the library logs the whole text."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization: Bearer k3y-of-a-collector,x-team=a")
    await model_in(tmp_path).log([art.TrajectoryGroup([rollout()])], step=3)
    assert "Header format invalid" in caplog.text and "k3y" not in caplog.text
    assert collector.requests[0][1]["x-team"] == "a", "what can be read is sent"
