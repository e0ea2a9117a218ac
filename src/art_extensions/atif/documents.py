"""A trajectory as a document of ATIF, and back.

    to_atif(trajectory)    its conversation as steps, its further histories as trajectories of sub-agents;
                           what ATIF has no word for lies under `extra` -> `art`
    from_atif(document)    what a trajectory has no word for lies under `metadata` -> `atif`

Neither loses anything: a trajectory that is written and read is equal to the first, and so is a document that
is read and written. The format: https://github.com/harbor-framework/harbor, RFC 0001.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from art.errors import ConfigurationError
from art.tracking.trajectory_lines import dict_to_trajectory
from art.tracking.trajectory_rows import all_fields, from_text, to_text
from art.trajectories import Trajectory
from art.wire.quoting import quote_value
from art_extensions.atif.residue import add_residue, residue_of
from art_extensions.atif.steps import (
    OURS,
    AtifStep,
    Tokens,
    group_messages,
    messages_of,
    write_step,
)

VERSION = "ATIF-v1.7"
KNOWN = "ATIF-v1."
THEIRS = "atif"
"""The key of a trajectory's metadata under which lies what it has no word for."""
NO_TOKENS: Tokens = MappingProxyType({})
_HISTORIES, _BELOW = "additional_histories", "subagent_trajectories"
_CONVERSATION = ("messages_and_choices", "tools", _HISTORIES)
Document = dict[str, Any]


def to_atif(trajectory: Trajectory, *, model_name: str | None = None, tokens: Tokens = NO_TOKENS) -> Document:
    """Returns the trajectory as a document of ATIF.

    model_name: of the agent. tokens: the ids and logprobs of its samples, as the ledger has them; steps of
    other samples have none. An empty conversation is one empty step.
    """
    fields: dict[str, Any] = from_text(to_text(all_fields(trajectory)))
    if not trajectory.exchanges:
        del fields["exchanges"]
    ours = {name: value for name, value in fields.items() if name not in _CONVERSATION}
    theirs = (ours.get("metadata") or {}).pop(THEIRS, None) or {}
    others: list[dict[str, Any]] = fields[_HISTORIES] or []
    sizes = [*(theirs.get("sizes") or ()), *[()] * len(others), ()]
    document = _write(fields, model_name, tokens, sizes[0])
    document["extra"] = {OURS: ours}
    if others:
        document[_BELOW] = [
            {"trajectory_id": f"history-{number}", **_write(one, model_name, tokens, sizes[number])}
            for number, one in enumerate(others, 1)
        ]
    if trajectory.rollout_id:
        document["session_id"] = trajectory.rollout_id
    written: Document = add_residue(document, theirs.get("document"))
    return written


def _write(
    history: Mapping[str, Any], model_name: str | None, tokens: Tokens, sizes: Sequence[int]
) -> Document:
    import art

    agent = {"name": "art", "version": art.__version__, "model_name": model_name}
    agent["tool_definitions"] = history.get("tools")
    groups = group_messages(history["messages_and_choices"], sizes)
    steps = [write_step(group, number, tokens) for number, group in enumerate(groups or [[]], 1)]
    return {
        "schema_version": VERSION,
        "agent": {name: value for name, value in agent.items() if value is not None},
        "steps": steps,
        "final_metrics": {"total_steps": len(steps), **_sums(steps)},
    }


def _sums(steps: Sequence[AtifStep]) -> dict[str, int]:
    counted = [metrics for step in steps if isinstance(metrics := step.get("metrics"), Mapping)]
    return {
        f"total_{name}": sum(one.get(name) or 0 for one in counted)
        for name in ("prompt_tokens", "completion_tokens")
        if any(one.get(name) is not None for one in counted)
    }


def from_atif(document: Mapping[str, Any]) -> Trajectory:
    """Returns the trajectory of a document of ATIF 1.0 to 1.8.

    Sub-agents are further histories. A step of ours is a choice again; another agent's is context, as no
    sample of the ledger stands behind it. Raises: ConfigurationError for what is no such document.
    """
    check_document(document)
    extra = document.get("extra")
    ours = extra.get(OURS) if isinstance(extra, Mapping) else None
    below: Sequence[Mapping[str, Any]] = document.get(_BELOW) or ()
    fields = {
        **(ours if isinstance(ours, Mapping) else {}),
        **_read(document),
        _HISTORIES: [_read(one) for one in below],
    }
    trajectory = dict_to_trajectory(fields)
    read = [document, *below]
    sizes = [[len(messages_of(step)) for step in one["steps"]] for one in read]
    own = trajectory.metadata
    if not isinstance(own, Mapping):
        raise ConfigurationError(f"extra: ART's own part is damaged: its metadata is {quote_value(own)}")
    trajectory.metadata = {**own, THEIRS: {"sizes": sizes}}
    residue = residue_of(to_atif(trajectory), document)
    if residue is None:
        trajectory.metadata = own
    else:
        trajectory.metadata[THEIRS]["document"] = residue
    return trajectory


def _read(document: Mapping[str, Any]) -> dict[str, Any]:
    messages = [message for step in document["steps"] for message in messages_of(step)]
    return {"messages_and_choices": messages, "tools": document["agent"].get("tool_definitions")}


def sft_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row for supervised fine-tuning of the document, and one of each sub-agent that acts.

    Steps that were copied from another trajectory are context. Raises: ConfigurationError for what is no
    document of ATIF.
    """
    check_document(document)
    for one in (document, *(document.get(_BELOW) or ())):
        messages = []
        for step in one["steps"]:
            for message in messages_of(step):
                plain = dict(message.get("message") or {}) if "finish_reason" in message else dict(message)
                if step.get("is_copied_context") and plain.get("role") == "assistant":
                    plain["weight"] = 0
                messages.append(plain)
        if any(one.get("role") == "assistant" and one.get("weight") != 0 for one in messages):
            tools = one["agent"].get("tool_definitions")
            yield {"messages": messages, **({"tools": tools} if tools else {})}


def check_document(document: Any, where: str = "document") -> None:
    """Raises: ConfigurationError that names the place which is not as ATIF has it."""
    if not isinstance(document, Mapping):
        raise ConfigurationError(
            f"{where}: {type(document).__name__} is no ATIF trajectory, which is an object"
        )
    version = document.get("schema_version")
    if not isinstance(version, str) or not version.startswith(KNOWN):
        raise ConfigurationError(
            f"{where}.schema_version: {version!r:.60} is no version of ATIF that is known; those are {KNOWN}*"
        )
    if not isinstance(document.get("agent"), Mapping):
        raise ConfigurationError(f"{where}.agent: an object with a name is needed")
    steps = document.get("steps")
    if not isinstance(steps, list) or not steps:
        raise ConfigurationError(f"{where}.steps: a list with at least one step is needed")
    for number, step in enumerate(steps):
        _check_step(step, f"{where}.steps[{number}]")
    below = document.get(_BELOW) or []
    if not isinstance(below, list):
        raise ConfigurationError(f"{where}.{_BELOW}: a list is needed")
    for number, one in enumerate(below):
        check_document(one, f"{where}.{_BELOW}[{number}]")


def _check_step(step: Any, where: str) -> None:
    if not isinstance(step, Mapping) or step.get("source") not in ("system", "user", "agent"):
        raise ConfigurationError(f"{where}: a step has the source system, user or agent")
    if not isinstance(step.get("message"), str | list):
        raise ConfigurationError(f"{where}.message: a text or a list of parts is needed")
    calls = step.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_is_call(one) for one in calls):
        raise ConfigurationError(
            f"{where}.tool_calls: each needs tool_call_id, function_name and arguments, an object"
        )
    observation = step.get("observation") or {}
    results = observation.get("results") if isinstance(observation, Mapping) else None
    if observation and not (isinstance(results, list) and all(isinstance(one, Mapping) for one in results)):
        raise ConfigurationError(f"{where}.observation.results: a list of objects is needed")
    contents = [step["message"], *(one.get("content") for one in results or ())]
    if not all(_is_part(part) for content in contents if isinstance(content, list) for part in content):
        raise ConfigurationError(f"{where}: a part of a message is a text, or has a source with a path")
    try:
        if not all(isinstance(one, Mapping) for one in messages_of(step)):
            raise TypeError("a message is an object")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}.extra: ART's own part is damaged: {error!r:.200}") from error


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, Mapping)
        and isinstance(call.get("tool_call_id"), str)
        and isinstance(call.get("function_name"), str)
        and isinstance(call.get("arguments"), Mapping)
    )


def _is_part(part: Any) -> bool:
    if not isinstance(part, Mapping) or part.get("type") not in ("text", "image", "audio"):
        return False
    source = part.get("source")
    return part["type"] == "text" or (isinstance(source, Mapping) and isinstance(source.get("path"), str))
