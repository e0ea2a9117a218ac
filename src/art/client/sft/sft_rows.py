"""The one reader of examples for supervised training: rows of every known format become trajectories.

    {"messages": [{"role": ..., "content": ...}]}           OpenAI's; with "tools" beside it
    {"conversations": [{"from": "human", "value": ...}]}    ShareGPT's
    {"prompt": ..., "completion": ...}                      texts, or lists of messages

A row is a dict of Python, of a file, or of a `datasets.Dataset`, which gives its rows as dicts. A key that is
null is one that the row does not have: columns of Parquet files and of datasets are filled up with nulls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from art.errors import ConfigurationError, did_you_mean
from art.process.foreign_files import parse_json
from art.trajectories import Trajectory, gathered
from art.types import kind_of
from art.wire.quoting import quote_value

if TYPE_CHECKING:
    from art.backend import SftExample

MESSAGE_KEYS = ("messages", "conversations", "conversation")
"""The keys of a list of messages, the first that a row has."""
ROLES: Mapping[str, str] = MappingProxyType(
    {
        "system": "system",
        "developer": "system",
        "user": "user",
        "human": "user",
        "assistant": "assistant",
        "gpt": "assistant",
        "model": "assistant",
        "chatgpt": "assistant",
        "tool": "tool",
        "observation": "tool",
        "function_response": "tool",
    }
)
"""Names of speakers -> the role."""
_CONVERSIONS: tuple[tuple[tuple[str, str], str], ...] = (
    (("instruction", "output"), 'a text with an instruction: "prompt" is the instruction and the input'),
    (("question", "answer"), "questions and answers"),
    (("prompt", "response"), "prompts and responses"),
    (("query", "response"), "queries and responses"),
    (("input", "output"), "inputs and outputs"),
)
"""Keys of formats that are told apart by them alone -> what they are."""
_KNOWN = '"messages"; "conversations"; "prompt" with "completion"'


def sft_trajectories(rows: Iterable[SftExample]) -> list[Trajectory]:
    """Returns the trajectory of each row; trajectories stay as they are.

    Raises ConfigurationError for a row of an unknown format, with its number, its keys and the conversion to
    make, and for a table, a file's path and a dict, with how to get at the rows; TypeError for anything else.
    """
    _refuse_whole(rows)
    return [_item(number, row) for number, row in enumerate(gathered(rows, "train_sft()"))]


def _item(number: int, row: Any) -> Trajectory:
    if isinstance(row, Trajectory):
        return row
    if isinstance(row, Mapping):
        return row_trajectory(f"train_sft: row {number}", row)
    raise TypeError(
        f"train_sft: item {number} is {kind_of(row)}, not a Trajectory and not a row (a dict); of a group "
        "give its `trajectories`"
    )


def row_trajectory(where: str, row: Any) -> Trajectory:
    """Returns a row as a trajectory. where: the place of the row, for messages.

    The last message must be an assistant's. What assistants say in a `prompt` is context (weight 0): the
    completion is what is learned. Raises ConfigurationError.
    """
    if not isinstance(row, Mapping):
        raise ConfigurationError(f"{where} is {quote_value(row, 80)}, not an object with one of: {_KNOWN}")
    messages = _row_messages(where, row)
    last = messages[-1]["role"] if messages else None
    if last != "assistant":
        raise ConfigurationError(
            f"{where}: the last message is of role {last!r}; it must be an assistant's, which is what is "
            "learned. Cut the row behind the last assistant message, or leave it out"
        )
    tools = _tools(where, row.get("tools"))
    return Trajectory(messages_and_choices=cast(Any, messages), tools=tools, reward=0.0)


def _drop_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in row.items() if value is not None}


def _row_messages(where: str, given_row: Mapping[str, Any]) -> list[dict[str, Any]]:
    row = _drop_nulls(given_row)
    key = next((key for key in MESSAGE_KEYS if key in row), None)
    if key is not None:
        messages = _messages(f"{where}, {key}", row[key])
        if row.get("system") and not (messages and messages[0]["role"] == "system"):
            messages.insert(0, {"role": "system", "content": row["system"]})
    elif "prompt" in row and "completion" in row:
        prompt = _turn(f"{where}, prompt", row["prompt"], "user")
        for message in prompt:
            if message["role"] == "assistant":
                message["weight"] = 0
        messages = prompt + _turn(f"{where}, completion", row["completion"], "assistant")
    else:
        raise _unknown_format(where, given_row)
    _name_calls(messages)
    return messages


def _turn(where: str, value: Any, role: str) -> list[dict[str, Any]]:
    """A text is one message; a dict is one too."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _messages(where, [value] if isinstance(value, Mapping) else value)


def _messages(where: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigurationError(f"{where} is {quote_value(value, 80)}, not a list of messages")
    return [_message(f"{where}[{number}]", message) for number, message in enumerate(value)]


def _message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ConfigurationError(f"{where} is {quote_value(message, 80)}, not a message with a role")
    given = _drop_nulls(message)
    speaker = given.pop("from", None) if "role" not in given else given["role"]
    role = ROLES.get(str(speaker).lower())
    if role is None:
        shown = quote_value(speaker, 80)
        hint = did_you_mean(shown.strip("'"), ROLES)
        raise ConfigurationError(
            f"{where} is of role {shown}{hint and f', {hint}'}; known: {', '.join(ROLES)}. Its keys: "
            f"{quote_value(list(given)).strip('[]')}. Write calls as `tool_calls` of an assistant message"
        )
    if "content" not in given and "value" in given:
        given["content"] = given.pop("value")
    return {**given, "role": role}


def _name_calls(messages: list[dict[str, Any]]) -> None:
    """Gives calls their ids, and results those of the calls they follow, where a format has none."""
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and isinstance(message.get("tool_calls"), Sequence):
            message["tool_calls"] = calls = [
                {**call, "id": call.get("id") or f"call_{number}_{at}"} if isinstance(call, Mapping) else call
                for at, call in enumerate(message["tool_calls"])
            ]
            waiting = [call["id"] for call in calls if isinstance(call, Mapping)]
        elif message["role"] == "tool":
            named = message.setdefault("tool_call_id", waiting[0] if waiting else f"call_{number}")
            waiting = [call for call in waiting if call != named]


def _tools(where: str, tools: Any) -> list[Any] | None:
    """Tools may be JSON text: columns of datasets cannot hold schemas of different shapes."""
    if isinstance(tools, str):
        try:
            tools = parse_json(tools)
        except ValueError as error:
            raise ConfigurationError(f"{where}: tools is a text that is not valid JSON: {error}") from error
    if tools and not (isinstance(tools, list) and all(isinstance(one, Mapping) for one in tools)):
        raise ConfigurationError(f"{where}: tools is {quote_value(tools, 80)}, not a list of tools")
    return tools or None


def _unknown_format(where: str, row: Mapping[str, Any]) -> ConfigurationError:
    named = ", ".join(repr(key) if row[key] is not None else f"{key!r} (null)" for key in row)
    keys = f"has the keys {named or '(none)'}"
    row = _drop_nulls(row)
    if {"role", "content"} <= set(row) or {"from", "value"} <= set(row):
        return ConfigurationError(
            f'{where} {keys}: this is one message. A row holds a conversation: {{"messages": [...]}}'
        )
    for (question, answer), what in _CONVERSIONS:
        if question in row and answer in row:
            source = f'row["{question}"]' + (' + row.get("input", "")' if question == "instruction" else "")
            return ConfigurationError(
                f"{where} {keys}: these are {what}. Convert each row: "
                f'{{"prompt": {source}, "completion": row["{answer}"]}}'
            )
    near = next((hint for key in row if (hint := did_you_mean(key, (*MESSAGE_KEYS, "completion")))), "")
    return ConfigurationError(
        f"{where} {keys}, and no known format: {_KNOWN}{near and f' ({near})'}. Convert each row: "
        '{"messages": [{"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}]}'
    )


def _refuse_whole(rows: Any) -> None:
    """Raises ConfigurationError for what holds rows but does not give them when it is iterated."""
    kind = type(rows).__name__
    if isinstance(rows, str) or hasattr(rows, "__fspath__"):
        problem = f"{str(rows)!r} is a path: use art.utils.sft.train_sft_from_file(model, path)"
    elif isinstance(rows, Mapping):
        splits = [key for key, value in rows.items() if hasattr(value, "column_names")]
        if splits:
            problem = f"a {kind} holds splits: give one of them, such as data[{splits[0]!r}]"
        elif any(key in rows for key in (*MESSAGE_KEYS, "prompt")):
            problem = "a dict is one row, or columns: give a list of rows, [{...}, {...}]"
        else:
            problem = f"a {kind} with the keys {', '.join(map(repr, rows))} is no list of rows"
    else:
        ways = {"to_dicts": "to_dicts()", "to_pylist": "to_pylist()", "iterrows": 'to_dict("records")'}
        way = next((call for name, call in ways.items() if hasattr(rows, name)), None)
        if way is None:
            return
        problem = f"a {kind} gives its columns: give its rows, data.{way}"
    raise ConfigurationError(f"train_sft: {problem}")
