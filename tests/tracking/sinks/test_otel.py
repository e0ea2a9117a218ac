"""Rollouts and steps arrive at a collector as spans of the GenAI conventions: once each, parents right."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice
from tests.otlp_collector import Collector, collecting

import art
from art.tracking.sinks.registry import deliveries
from art.tracking.step_record import read_rollouts

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.delenv(CAPTURE, raising=False)
        yield found


def model_in(folder: Path) -> art.Model:
    return art.Model(name="agent", project="games", base_path=str(folder), report_metrics=["otel"])


def choice(content: str | None, calls: list[dict[str, Any]] | None = None) -> Choice:
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    fields = {"step": 2, "sample_id": f"s-{len(content or '')}", "completion_tokens": 7}
    told = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message, **fields}
    return Choice.model_validate(told)


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
        choice("the secret answer"),
    ]
    told = {"metrics": {"duration": 2.0, "right": 1}, "rollout_id": "r-1", "reward": 0.5}
    return art.Trajectory(messages_and_choices=turns, **told)


async def test_a_rollout_is_a_tree_of_rollout_completions_and_tools(
    tmp_path: Path, collector: Collector
) -> None:
    await model_in(tmp_path).log([art.TrajectoryGroup([rollout()])], step=3)
    (top,), chats, (tool,) = (collector.named(name) for name in ("invoke_agent", "chat", "execute_tool"))
    assert not top.parent and [chat.parent for chat in chats] == [top.id] * 2 and tool.parent == chats[0].id
    assert {span.trace for span in (*chats, tool)} == {top.trace}
    assert len({span.id for span in collector.spans}) == len(collector.spans)
    assert top.end - top.start == 2_000_000_000 and all(top.start <= one.start <= top.end for one in chats)
    expected = {"art.rollout": "r-1", "art.reward": 0.5, "art.step": 3, "art.split": "val", "art.group": 0}
    assert expected.items() <= top.attributes.items() and top.attributes["art.reward_part.right"] == 1.0
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


async def test_failed_and_unscored_rollouts_are_told_as_such(tmp_path: Path, collector: Collector) -> None:
    unscored = art.Trajectory(reward=art.Unscored("no judge"), rollout_id="u")
    failed = RuntimeError("key sk-12345")
    await model_in(tmp_path).log([art.TrajectoryGroup([unscored, failed])], step=0)
    by_fate = {span.error: span for span in collector.named("invoke_agent")}
    assert "RuntimeError" in by_fate[True].attributes["error.type"]
    assert by_fate[False].attributes["art.unscored_reason"] == "no judge"
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
    assert len(collector.named("chat")) == 1_200 and len(collector.named("invoke_agent")) == 40


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
        result = await backend.train(model, [group], learning_rate=1e-4)
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
    assert step.attributes["art.step"] == result.step
    assert step.attributes["art.metric.loss/train"] == pytest.approx(result.metrics["loss/train"])


async def test_texts_that_are_no_utf8_lose_no_batch(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    turns: list[Any] = [{"role": "user", "content": "\ud800\0"}, choice("\u202e")]
    odd = art.Trajectory(messages_and_choices=turns, reward=1.0, rollout_id="odd")
    await model_in(tmp_path).log([art.TrajectoryGroup([odd])], step=0)
    assert collector.named("chat") and collector.named("invoke_agent")
