"""Rollouts and steps as OpenTelemetry spans, over OTLP/HTTP to where `OTEL_EXPORTER_OTLP_*` points.

    invoke_agent        a rollout: a trace of its own, with reward, advantage, fate and step
      chat              each completion
        execute_tool    each call whose result is in the conversation
    train_step          a row of the log with its numbers, a trace of its own

Ids are made of the names of model and rollout: a rollout that is reported again gets the same ids. The log
knows when a rollout began and how long it took, and no times of its parts: these have the rollout's begin,
a microsecond apart, and no length.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from art.process.environment import CAPTURE_CONTENT, OTEL_SERVICE_NAME, variable
from art.tracking.sinks.sink import ReportedRun, TableRow, writable
from art.tracking.step_record import read_rollouts
from art.trajectories import History, Trajectory, is_choice
from art.types import Unscored, text_of_content
from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD

if TYPE_CHECKING:
    from art.trajectories import PydanticException, TrajectoryGroup
    from art.wire.rollout_record import RolloutRecord

CONVENTIONS = "https://opentelemetry.io/schemas/1.38.0"
"""The version of the semantic conventions whose `gen_ai.*` names are used."""
SENT_AT_ONCE = 500
"""Spans of a request."""
REMEMBERED = 100_000
"""Rollouts that are known to have been reported."""
_SCOPE = InstrumentationScope("art", schema_url=CONVENTIONS)
_US, _S = 1_000, 1_000_000_000


class OTelSink:
    """Reports the rows and all rollouts of one run."""

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        """Reads `OTEL_*` from the environment."""
        self._project, self._name, self._folder = run.project, run.folder.name, run.folder
        self._resource = Resource.create(
            {} if variable(OTEL_SERVICE_NAME) else {"service.name": "art"}, CONVENTIONS
        )
        self._content = (variable(CAPTURE_CONTENT) or "").lower() in ("true", "span_only", "span_and_event")
        self._exporter = OTLPSpanExporter()
        self._waiting: list[ReadableSpan] = []
        self._known: set[int] = set()
        self._order: deque[int] = deque()

    def config(self, values: Mapping[str, Any]) -> None:
        """Sends nothing: spans have no place for a config."""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Reports the row as a span whose attributes are its numbers."""
        numbers = {f"art.metric.{name}": value for name, value in row.items() if name != "training_step"}
        end = time.time_ns()
        trained = any(name.startswith(("loss/", "train/")) for name in row)
        context = self._context("row", str(step), str(sorted(row.items())), str(end))
        start = end - int(row.get("time/step_wall_s", 0.0) * _S)
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
        self._send()

    def close(self) -> None:
        """Closes the connection; everything was sent by the calls before."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

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
        start = int(trajectory.start_time.timestamp() * _S)
        end = start + int(float(trajectory.metrics.get("duration", 0.0)) * _S)
        shared = {**shared, "art.rollout": rollout}
        turns = 0
        histories: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
        for place, history in enumerate(histories):
            for index in _completions(history):
                turns += 1
                self._add_completion(
                    rollout, f"{place}/{index}", context, history, index, start + turns * _US, shared
                )
        facts = {**shared, **_rollout_facts(trajectory, record)}
        self._add(
            f"invoke_agent {self._name}",
            context,
            None,
            start,
            max(end, start + turns * _US),
            {"gen_ai.operation.name": "invoke_agent", "gen_ai.conversation.id": rollout, **facts},
            events=_evaluations(trajectory, record, self._content),
        )

    def _add_completion(
        self,
        rollout: str,
        place: str,
        parent: SpanContext,
        history: Trajectory | History,
        index: int,
        start: int,
        shared: Mapping[str, Any],
    ) -> None:
        items: list[Any] = list(history.messages_and_choices)
        choice, context = items[index], self._context(rollout, place)
        extra = choice.model_extra or {}
        sampled_at = extra.get(STEP_FIELD)
        facts = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self._name,
            "gen_ai.response.model": self._name if sampled_at is None else f"{self._name}@{sampled_at}",
            "gen_ai.response.finish_reasons": [str(choice.finish_reason)],
            "gen_ai.response.id": extra.get(SAMPLE_FIELD),
            "gen_ai.usage.output_tokens": _count(extra.get(TOKENS_FIELD)),
            "art.sample": extra.get(SAMPLE_FIELD),
            "art.policy_step": sampled_at,
        }
        if self._content:
            before = [_message(item) for item in items[:index]]
            reply = {**_message(choice), "finish_reason": choice.finish_reason}
            facts["gen_ai.input.messages"] = json.dumps(before)
            facts["gen_ai.output.messages"] = json.dumps([reply])
            facts["gen_ai.tool.definitions"] = json.dumps(history.tools) if history.tools else None
        self._add(f"chat {self._name}", context, parent, start, start, {**shared, **facts}, SpanKind.CLIENT)
        results = {
            item.get("tool_call_id"): item
            for item in items[index + 1 :]
            if not is_choice(item) and dict(item).get("role") == "tool"
        }
        for number, call in enumerate(choice.message.tool_calls or ()):
            function = getattr(call, "function", None)
            if function is not None and call.id in results:
                call_facts = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": function.name,
                    "gen_ai.tool.call.id": call.id,
                    "gen_ai.tool.type": "function",
                }
                if self._content:
                    call_facts["gen_ai.tool.call.arguments"] = function.arguments
                    call_facts["gen_ai.tool.call.result"] = text_of_content(results[call.id].get("content"))
                inner = self._context(rollout, f"{place}/{number}")
                self._add(
                    f"execute_tool {function.name}", inner, context, start, start, {**shared, **call_facts}
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
        status: Status | None = None,
    ) -> None:
        about = {
            "art.project": self._project,
            "art.model": self._name,
            "gen_ai.provider.name": "art",
            "gen_ai.agent.name": self._name,
        }
        kept = {writable(key): _value(value) for key, value in attributes.items() if value is not None}
        span = ReadableSpan(
            name=writable(name),
            context=context,
            parent=parent,
            resource=self._resource,
            attributes={**about, **kept},
            events=events,
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


def _completions(history: Trajectory | History) -> Iterator[int]:
    return (index for index, item in enumerate(history.messages_and_choices) if is_choice(item))


def _rollout_facts(trajectory: Trajectory, record: RolloutRecord | None) -> dict[str, Any]:
    reward = trajectory.reward
    facts: dict[str, Any] = {
        "art.reward": None if isinstance(reward, Unscored) else float(reward),
        "art.unscored_reason": reward.reason if isinstance(reward, Unscored) else None,
        **{f"art.reward_part.{name}": float(value) for name, value in trajectory.metrics.items()},
    }
    if record is not None:
        facts |= {"art.fate": record.fate, "art.advantage": record.advantage, "art.scenario": record.scenario}
    return facts


def _evaluations(trajectory: Trajectory, record: RolloutRecord | None, content: bool) -> list[Event]:
    """The reward as an evaluation, told by its judge where the record knows one."""
    if isinstance(trajectory.reward, Unscored):
        return []
    judge = record.judge if record is not None else None
    score: dict[str, Any] = {
        "gen_ai.evaluation.name": (judge.name if judge is not None else None) or "reward",
        "gen_ai.evaluation.score.value": float(trajectory.reward),
    }
    if content and judge is not None and judge.words:
        score["gen_ai.evaluation.explanation"] = writable(judge.words)
    return [Event("gen_ai.evaluation.result", score, int(trajectory.start_time.timestamp() * _S))]


def _message(item: Any) -> dict[str, Any]:
    """Returns a message in the shape that `gen_ai.input.messages` has."""
    message = item.message.model_dump(exclude_none=True) if is_choice(item) else dict(item)
    text = text_of_content(message.get("content"))
    if message.get("role") == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text}
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
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


def _count(tokens: Any) -> int | None:
    """The field has the tokens' number, or the tokens."""
    if isinstance(tokens, int):
        return tokens
    return len(tokens) if isinstance(tokens, list) else None


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return writable(value)
    return [writable(one) for one in value] if isinstance(value, list) else value
