"""Rollouts and steps as OpenTelemetry spans, over OTLP/HTTP to where `OTEL_EXPORTER_OTLP_*` points.

    invoke_agent        a rollout: a trace of its own, with reward, advantage, fate and step
      chat              each completion
        execute_tool    each call whose result is in the conversation
    evaluate            what a reward asked its judges about a group, a trace with links to the rollouts
      chat              each question
    train_step          a row of the log with its numbers, a trace of its own, which rollouts link to

Ids are made of the names of model and rollout: a rollout that is reported again gets the same ids. Times of
completions and judges are those that the client noted (`art.wire.rollouts.ObservedCompletion`). A completion
without a note comes a microsecond after what was before it, and has no length.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.re import parse_env_headers

from art.process.environment import OTEL_SERVICE_NAME, captures_content, variable
from art.tracking.names import STEP_COLUMN
from art.tracking.run_facts import FACTS
from art.tracking.sinks.sink import ReportedRun, TableRow
from art.tracking.step_record import read_rollouts
from art.trajectories import History, Trajectory, is_choice
from art.types import (
    JudgeCall,
    completion_call,
    known_reward,
    revive_choices,
    sample_id,
    text_of_content,
    unscored_reason,
)
from art.wire.quoting import writable
from art.wire.rollout_record import LONGEST_REASON, cut
from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD

if TYPE_CHECKING:
    from art.trajectories import PydanticException, TrajectoryGroup
    from art.wire.rollout_record import RolloutRecord

CONVENTIONS = "https://opentelemetry.io/schemas/1.38.0"
"""The version of the semantic conventions whose `gen_ai.*` names are used."""
ALGORITHM, ENVIRONMENT = "rl.algorithm", "rl.environment.name"
"""Attributes of resources, where they are known. `_add` takes the second one with the attributes."""
SENT_AT_ONCE = 500
"""Spans of a request."""
REMEMBERED = 100_000
"""Rollouts that are known to have been reported."""
_SCOPE = InstrumentationScope("art", schema_url=CONVENTIONS)
_DATA_URL = re.compile(r"data:(image/[^;,]+);base64,(.*)", re.S)
_US, _S = 1_000, 1_000_000_000


def _without_header(record: logging.LogRecord) -> bool:
    """The library's complaint of headers that it cannot read, in which keys stand, without them."""
    record.args = ("(not shown)",)
    return True


class SpanLines(SpanExporter):
    """Writes spans as OTLP JSON, one export request a line, as the collector's file exporter does."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Writes a line."""
        document = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        for span in (one for r in document["resourceSpans"] for s in r["scopeSpans"] for one in s["spans"]):
            for holder in (span, *span.get("links", ())):
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in holder:  # OTLP has these bytes in hex, unlike all others
                        holder[name] = base64.b64decode(holder[name]).hex()
        self._file.write(json.dumps(document) + "\n")
        return SpanExportResult.SUCCESS


class OTelSink:
    """Reports the rows and all rollouts of one run.

    exporter: takes the spans; without it they go where the environment says. content: send texts; without it
    the environment says.
    """

    def __init__(self, exporter: SpanExporter | None = None, *, content: bool | None = None) -> None:
        self._given, self._wants_content = exporter, content

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        """Reads `OTEL_*` from the environment."""
        self._project, self._name, self._folder = run.project, run.folder.name, run.folder
        about = {"rl.system": "art", "rl.run.id": f"{run.project}/{self._name}", "rl.model.name": run.name}
        named = {} if variable(OTEL_SERVICE_NAME) else {"service.name": "art"}
        self._run = Resource.create({**about, **named}, CONVENTIONS)
        self._algorithm = _algorithm_of(config)
        self._content = captures_content() if self._wants_content is None else self._wants_content
        logging.getLogger(parse_env_headers.__module__).addFilter(_without_header)
        self._exporter = self._given or OTLPSpanExporter()
        self._waiting: list[ReadableSpan] = []
        self._known: set[int] = set()
        self._order: deque[int] = deque()

    def config(self, values: Mapping[str, Any]) -> None:
        """Keeps the algorithm, which resources have; spans have no place for the rest."""
        self._algorithm = _algorithm_of(values)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Reports the row as a span whose attributes are its numbers."""
        numbers = {f"art.metric.{name}": value for name, value in row.items() if name != STEP_COLUMN}
        end = time.time_ns()
        trained = any(name.startswith(("loss/", "train/")) for name in row)
        context = self._row_context(step) if trained else None
        if context is None or not self._is_new(context.trace_id):
            context = self._context("row", str(step), str(sorted(row.items())), str(end))
        start = end - _ns(row.get("time/step_wall_s", 0.0))
        facts = {"art.step": step, **numbers}
        self._add("train_step" if trained else "log_row", context, None, start, end, facts)
        self._send()

    def table(self, name: str, step: int, rows: Sequence[TableRow]) -> None:
        """Sends nothing: `rollouts` has them all."""

    def rollouts(self, split: str, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Reports each rollout with its completions and tool calls; one that was reported is left out."""
        records = {one.rollout: one for one in read_rollouts(self._folder, step)}
        for number, group in enumerate(groups):
            shared = {"art.split": split, "art.step": step, "art.group": number}
            for place, trajectory in enumerate(group.trajectories):
                rollout = trajectory.rollout_id or f"{split}/{step}/{number}/{place}"
                self._add_rollout(rollout, trajectory, shared, records.get(rollout))
            for place, failure in enumerate(group.exceptions, start=len(group.trajectories)):
                self._add_failure(f"{split}/{step}/{number}/{place}", failure, shared)
            rollouts = [
                self._context(one.rollout_id or f"{split}/{step}/{number}/{place}", "rollout")
                for place, one in enumerate(group.trajectories)
            ]
            self._add_judges(group._judge_calls, rollouts, shared)
        self._send()

    def close(self) -> None:
        """Closes the connection; everything was sent by the calls before."""
        self._exporter.shutdown()

    def _add_rollout(
        self,
        rollout: str,
        trajectory: Trajectory,
        shared: Mapping[str, Any],
        record: RolloutRecord | None,
    ) -> None:
        context = self._context(rollout, "rollout")
        if not self._is_new(context.trace_id):
            return
        start = _ns(trajectory.start_time.timestamp())
        end = start + _ns(float(trajectory.metrics.get("duration", 0.0)))
        environment = trajectory.metadata.get("environment")
        shared = {**shared, "art.rollout": rollout, ENVIRONMENT: environment}
        credit = _credit_of_turns(trajectory, record, self._content)
        histories: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
        now = start
        for place, history in enumerate(histories):
            items = revive_choices(list(history.messages_and_choices))
            turns = [_Turn(items, index) for index, item in enumerate(items) if is_choice(item)]
            for turn, after in zip(turns, [*turns[1:], None], strict=False):
                now = turn.set_times(now, after)
                start, end = min(start, turn.start), max(end, turn.end)
                facts_of_turn = {**shared, **credit(turn.choice)}
                self._add_completion(
                    rollout, f"{place}/{turn.index}", context, turn, history.tools, facts_of_turn
                )
        facts = {**shared, **_rollout_facts(trajectory, record, self._content)}
        step = shared["art.step"]
        self._add(
            f"invoke_agent {self._name}",
            context,
            None,
            start,
            end,
            {"gen_ai.operation.name": "invoke_agent", "gen_ai.conversation.id": rollout, **facts},
            events=_evaluations(trajectory, record, self._content),
            links=[self._row_context(step)] if shared["art.split"] == "train" else (),
        )

    def _add_completion(
        self,
        rollout: str,
        place: str,
        parent: SpanContext,
        turn: _Turn,
        tools: list[Any] | None,
        shared: Mapping[str, Any],
    ) -> None:
        context = self._context(rollout, place)
        facts = {**turn.facts(self._name), **(turn.texts(tools) if self._content else {})}
        self._add(
            f"chat {self._name}",
            context,
            parent,
            turn.start,
            turn.end,
            {**shared, **facts},
            SpanKind.CLIENT,
        )
        results = turn.results()
        for number, call in enumerate(turn.choice.message.tool_calls or ()):
            function = getattr(call, "function", None)
            if function is not None and call.id in results:
                start, end, exact = turn.tool_times(call.id)
                call_facts = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": function.name,
                    "gen_ai.tool.call.id": call.id,
                    "gen_ai.tool.type": "function",
                    "art.tool.exact_time": exact,
                }
                if self._content:
                    call_facts["gen_ai.tool.call.arguments"] = function.arguments
                    call_facts["gen_ai.tool.call.result"] = text_of_content(results[call.id].get("content"))
                inner = self._context(rollout, f"{place}/{number}")
                self._add(
                    f"execute_tool {function.name}", inner, context, start, end, {**shared, **call_facts}
                )

    def _add_judges(
        self, calls: Sequence[JudgeCall], rollouts: Sequence[SpanContext], shared: Mapping[str, Any]
    ) -> None:
        """Reports each source's questions about a group under one span."""
        for source, found in groupby(sorted(calls, key=attrgetter("source")), attrgetter("source")):
            asked = sorted(found, key=attrgetter("started_at"))
            name = source.removeprefix("judge/")
            about = "\0".join([f"{one.trace_id:x}" for one in rollouts] + [str(asked[0].started_at)])
            context = self._context(f"judge/{name}/{about}", "judge")
            if not self._is_new(context.trace_id):
                continue
            for number, call in enumerate(asked):
                self._add(
                    f"chat {call.model}",
                    self._context(f"judge/{name}/{about}", str(number)),
                    context,
                    _ns(call.started_at),
                    _ns(call.ended_at),
                    {**shared, "art.judge": name, **_judge_facts(call, self._content)},
                    SpanKind.CLIENT,
                    status=Status(StatusCode.ERROR, call.error) if call.error else None,
                )
            prices = [call.usd for call in asked if call.usd is not None and not call.cached]
            self._add(
                f"evaluate {name}",
                context,
                None,
                _ns(asked[0].started_at),
                max(_ns(call.ended_at) for call in asked),
                {
                    **shared,
                    "gen_ai.operation.name": "evaluate",
                    "art.judge": name,
                    "art.cost_usd": sum(prices) if prices else None,
                },
                links=rollouts,
            )

    def _add_failure(self, rollout: str, failure: PydanticException, shared: Mapping[str, Any]) -> None:
        context = self._context(rollout, "failure", failure.traceback)
        if self._is_new(context.trace_id):
            now = time.time_ns()
            facts = {
                "gen_ai.operation.name": "invoke_agent",
                "error.type": failure.type,
                "art.fate": "failed",
            }
            self._add(
                f"invoke_agent {self._name}",
                context,
                None,
                now,
                now,
                {**shared, "art.rollout": rollout, **facts},
                status=Status(StatusCode.ERROR, failure.type),
            )

    def _is_new(self, trace: int) -> bool:
        if trace in self._known:
            return False
        self._known.add(trace)
        self._order.append(trace)
        if len(self._order) > REMEMBERED:
            self._known.discard(self._order.popleft())
        return True

    def _row_context(self, step: int) -> SpanContext:
        """Returns the identity of the first row of a training step."""
        return self._context("row", str(step), "train_step")

    def _context(self, trace: str, *place: str) -> SpanContext:
        base = f"{self._project}\0{self._name}\0{trace}"
        if trace == "row" or "failure" in place:
            base = "\0".join((base, *place))
        return SpanContext(
            int.from_bytes(hashlib.sha256(base.encode("utf-8", "surrogatepass")).digest()[:16]) or 1,
            int.from_bytes(
                hashlib.sha256("\0".join((base, *place)).encode("utf-8", "surrogatepass")).digest()[16:24]
            )
            or 1,
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )

    def _add(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start: int,
        end: int,
        attributes: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        events: Sequence[Event] = (),
        links: Sequence[SpanContext] = (),
        status: Status | None = None,
    ) -> None:
        about = {"art.project": self._project, "art.model": self._name, "gen_ai.provider.name": "art"}
        if "art.judge" not in attributes:
            about["gen_ai.agent.name"] = self._name
        environment = attributes.get(ENVIRONMENT)
        named = {ALGORITHM: self._algorithm, ENVIRONMENT: None if environment is None else str(environment)}
        resource = self._run.merge(Resource({key: writable(one) for key, one in named.items() if one}))
        written = {
            writable(key): _value(value)
            for key, value in attributes.items()
            if value is not None and key != ENVIRONMENT
        }
        span = ReadableSpan(
            name=writable(name),
            context=context,
            parent=parent,
            resource=resource,
            attributes={**about, **written},
            events=events,
            links=[Link(one) for one in links],
            kind=kind,
            status=status or Status(),
            start_time=start,
            end_time=end,
            instrumentation_scope=_SCOPE,
        )
        self._waiting.append(span)
        if len(self._waiting) >= SENT_AT_ONCE:
            self._send()

    def _send(self) -> None:
        spans, self._waiting = self._waiting, []
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError(
                f"{len(spans)} spans were not taken: see OTEL_EXPORTER_OTLP_ENDPOINT and _HEADERS"
            )


def _algorithm_of(config: Mapping[str, Any]) -> str | None:
    """Returns the name of the algorithm of the newest training job; None before there is one."""
    found: Any = config
    for key in (FACTS, "train", "algorithm", "name"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


class _Turn:
    """A completion in its conversation."""

    def __init__(self, items: list[Any], index: int) -> None:
        self._items, self.index = items, index
        self.choice = items[index]
        self.call = completion_call(self.choice)
        self.start = self.end = self._after = 0

    def set_times(self, now: int, after: _Turn | None) -> int:
        """Returns the end. now: what it is put behind where its own times are not known."""
        self.start = _ns(self.call["started_at"]) if "started_at" in self.call else now + _US
        self.end = max(self.start, _ns(self.call.get("ended_at", 0.0)))
        self._after = _ns(after.call.get("started_at", 0.0)) if after is not None else 0
        return max(now, self.end)

    def tool_times(self, call_id: str) -> tuple[int, int, bool]:
        """Returns when the tool began and ended, and whether that is exact.

        Where nobody noted it: what lies between this completion and the next, if both have times.
        """
        if noted := self.call.get("tools", {}).get(call_id):
            return _ns(noted[0]), max(_ns(noted[0]), _ns(noted[1])), True
        known = "ended_at" in self.call and self._after > self.end
        return self.end, self._after if known else self.end, False

    def results(self) -> dict[Any, Any]:
        """Returns the messages with results of tools behind it, by the id of the call."""
        further = (dict(item) for item in self._items[self.index + 1 :] if not is_choice(item))
        return {item.get("tool_call_id"): item for item in further if item.get("role") == "tool"}

    def facts(self, model: str) -> dict[str, Any]:
        extra = self.choice.model_extra or {}
        step = extra.get(STEP_FIELD)
        answered = self.call.get("model") if SAMPLE_FIELD not in extra else None
        tokens = _count(extra.get(TOKENS_FIELD))
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.response.model": answered or (model if step is None else f"{model}@{step}"),
            "gen_ai.response.finish_reasons": [str(self.choice.finish_reason)],
            "gen_ai.response.id": extra.get(SAMPLE_FIELD),
            "gen_ai.usage.input_tokens": self.call.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": self.call.get("completion_tokens") if tokens is None else tokens,
            "art.sample": extra.get(SAMPLE_FIELD),
            "art.policy_step": step,
        }

    def texts(self, tools: list[Any] | None) -> dict[str, Any]:
        before = [_message(item) for item in self._items[: self.index]]
        reply = {**_message(self.choice), "finish_reason": self.choice.finish_reason}
        return {
            "gen_ai.input.messages": json.dumps(before),
            "gen_ai.output.messages": json.dumps([reply]),
            "gen_ai.tool.definitions": json.dumps(tools) if tools else None,
        }


def _judge_facts(call: JudgeCall, content: bool) -> dict[str, Any]:
    provider, slash, model = call.model.partition("/")
    facts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider if slash else "art",
        "gen_ai.request.model": model if slash else call.model,
        "gen_ai.response.finish_reasons": [call.finish_reason] if call.finish_reason else None,
        "gen_ai.usage.input_tokens": call.prompt_tokens or None,
        "gen_ai.usage.output_tokens": call.completion_tokens or None,
        "art.cost_usd": None if call.cached else call.usd,
        "art.cached": call.cached,
        "error.type": call.error,
    }
    if content:
        reply = {"role": "assistant", "parts": [{"type": "text", "content": call.text or ""}]}
        facts["gen_ai.input.messages"] = json.dumps([_message(item) for item in call.messages])
        facts["gen_ai.output.messages"] = json.dumps([{**reply, "finish_reason": call.finish_reason}])
    return facts


def _rollout_facts(trajectory: Trajectory, record: RolloutRecord | None, content: bool) -> dict[str, Any]:
    reward = known_reward(trajectory)
    facts: dict[str, Any] = {
        "art.reward": reward,
        "art.unscored": reward is None,
        # It may quote what a judge said, or what a tool raised.
        "art.unscored_reason": unscored_reason(trajectory) if content else None,
        **{f"art.reward_part.{name}": float(value) for name, value in trajectory.metrics.items()},
    }
    if record is not None:
        facts |= {"art.fate": record.fate, "art.advantage": record.advantage, "art.scenario": record.scenario}
    return facts


def _credit_of_turns(
    trajectory: Trajectory, record: RolloutRecord | None, content: bool
) -> Callable[[Any], dict[str, float | str | None]]:
    """Returns a function of a choice: what its turn earned and why, with later turns, and its advantage."""
    rewards, reasons = trajectory.turn_rewards, trajectory.turn_reasons if content else {}
    returns, advantages = (
        (record.by_sample(record.turn_returns), record.by_sample(record.turn_advantages))
        if record is not None
        else ({}, {})
    )

    def credit(choice: Any) -> dict[str, float | str | None]:
        sample = str(sample_id(choice))
        why = reasons.get(sample)
        return {
            "art.turn_reward": rewards.get(sample),
            "art.turn_reason": None if why is None else writable(str(cut(why, LONGEST_REASON))),
            "art.turn_return": returns.get(sample),
            "art.turn_advantage": advantages.get(sample),
        }

    return credit


def _evaluations(trajectory: Trajectory, record: RolloutRecord | None, content: bool) -> list[Event]:
    """The reward as an evaluation, told by its judge where the record knows one."""
    if (reward := known_reward(trajectory)) is None:
        return []
    judge = record.judge if record is not None else None
    score: dict[str, Any] = {
        "gen_ai.evaluation.name": (judge.name if judge is not None else None) or "reward",
        "gen_ai.evaluation.score.value": reward,
    }
    if content and judge is not None and judge.words:
        score["gen_ai.evaluation.explanation"] = writable(judge.words)
    return [Event("gen_ai.evaluation.result", score, _ns(trajectory.start_time.timestamp()))]


def _message(item: Any) -> dict[str, Any]:
    """Returns a message in the shape that `gen_ai.input.messages` has."""
    message = item.message.model_dump(exclude_none=True) if is_choice(item) else dict(item)
    text = text_of_content(message.get("content"))
    if message.get("role") == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text}
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content") or message.get("reasoning"):
        parts.append({"type": "reasoning", "content": thought})
    content = message.get("content") or ()
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts += [_part(dict(part)) for part in given]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    return {"role": message.get("role"), "parts": parts}


def _ns(seconds: float) -> int:
    return int(seconds * _S)


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a part of a content; one that the conventions have no word for stays as it is."""
    if part.get("type") == "text":
        return {"type": "text", "content": part.get("text")}
    image = part.get("image_url")
    if part.get("type") != "image_url" or not isinstance(image, dict) or set(image) != {"url"}:
        return part
    inline = _DATA_URL.fullmatch(str(image["url"]))
    if inline is None:
        return {"type": "uri", "modality": "image", "uri": image["url"]}
    return {"type": "blob", "modality": "image", "mime_type": inline[1], "content": inline[2]}


def _count(tokens: Any) -> int | None:
    """The field has the tokens' number, or the tokens."""
    if isinstance(tokens, int):
        return tokens
    return len(tokens) if isinstance(tokens, list) else None


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return writable(value)
    return [writable(one) for one in value] if isinstance(value, list) else value
