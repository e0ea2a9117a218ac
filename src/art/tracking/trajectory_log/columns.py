"""The columns of a trajectory log: those that older readers know, then ours. One row is one trajectory.

| column | type | content |
|---|---|---|
| group_index | int64 | which group of the file |
| group_metadata, group_metrics | text | JSON, null when empty |
| group_logs | list of text | null when empty |
| reward | double | null when unscored |
| metrics, metadata, tools | text | JSON, null when empty |
| logs | list of text | null when empty |
| messages | list of structs | role, content, tool_calls (JSON), tool_call_id, trainable |
| additional_histories | text | JSON: messages_and_choices and tools of each |
| group_exceptions | text | JSON: type, message and traceback of each failed attempt of the group |
| unscored_reason | text | why there is no reward |
| initial_policy_version, final_policy_version | int64 | |
| start_time | text | ISO 8601 |
| rollout_id | text | |
| group_exact, exact | text | JSON of what the columns above do not say exactly, null when they do |

`exact` holds fields by their names, among them `messages_and_choices` by position: choices with their log
probabilities and identifiers, messages with names, reasoning or images, fields of subclasses. Groups without
a trajectory have no row; the file's metadata lists them under `art.empty_groups`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars

EMPTY_GROUPS = "art.empty_groups"
"""Key of the file's metadata: JSON of the groups that have no row."""

TAKEN = "art.migrated_lines"
"""Key of the file's metadata: JSON of how much of the JSON lines beside it the file holds."""


def schema() -> polars.Schema:
    """Names and types, in order."""
    import polars

    text, number = polars.String(), polars.Int64()
    message = polars.Struct(
        {
            "role": text,
            "content": text,
            "tool_calls": text,
            "tool_call_id": text,
            "trainable": polars.Boolean(),
        }
    )
    return polars.Schema(
        {
            "group_index": number,
            "group_metadata": text,
            "group_metrics": text,
            "group_logs": polars.List(text),
            "reward": polars.Float64(),
            "metrics": text,
            "metadata": text,
            "tools": text,
            "logs": polars.List(text),
            "messages": polars.List(message),
            "additional_histories": text,
            "group_exceptions": text,
            "unscored_reason": text,
            "initial_policy_version": number,
            "final_policy_version": number,
            "start_time": text,
            "rollout_id": text,
            "group_exact": text,
            "exact": text,
        }
    )
