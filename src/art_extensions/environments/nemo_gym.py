"""Resource servers of NeMo-Gym: `find_environment("nemo-gym:NAME", python="gym/bin/python")`.

The server is the package's own, in an interpreter that has it (nemo_gym_worker.py), or one that runs already,
by its address. A scenario is a row of the package's form. The rollout is that of its `simple_agent`: the
model's calls go to the server as requests, until a reply without one, and `/verify` gives the reward. A
server of the package's Gymnasium kind is played as its `gymnasium_agent` does, and its steps are rewarded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import RolloutConversation, Scenario, check_split
from art.errors import ConfigurationError, EnvironmentFailedError
from art.process.foreign_files import parse_json
from art.process.imports import import_lock
from art_extensions.environments.dataset_rows import Rows, read_rows, split_rows
from art_extensions.environments.environment_server import EnvironmentServer, ServerSession
from art_extensions.environments.library_environment import (
    MOST_CHARACTERS,
    AdapterOptions,
    LibraryEnvironment,
    finite_reward,
    newest_calls,
    takes_options,
    text_in,
    text_of_turns,
)
from art_extensions.environments.nemo_gym_items import (
    ASKED,
    PARALLEL,
    calling_of,
    chat_messages_of,
    chat_tools_of,
    content_of,
    items_of_reply,
    output_item,
    refuse_calls,
    response_of,
    tool_message,
)
from art_extensions.environments.nemo_gym_process import ResourceServer, list_servers

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX = "nemo-gym:"
ADDRESSES = ("http://", "https://")
NO_TOOL = '{"detail":"Not Found"}'
"""What a server answers to a path that it does not have."""


class NemoGymEnvironment(LibraryEnvironment):
    """A resource server by its name in the package, or by the address of one that runs.

    python: the interpreter that has the package; None: this one. data, val_data: rows of "train" and "val";
    by default the examples that the package has with the server, and without `val_data` a part of `data` is
    kept for "val". settings: fields of the server's config, for a server by name. max_turns: replies after
    which a rollout ends as truncated. turn_rewards: for a server of the Gymnasium kind, each reply earns the
    reward of its step. connections: the most requests to the server at a time; others wait.
    """

    LIBRARY = "nemo-gym"

    @staticmethod
    def installed_names(*, python: str | None = None) -> dict[str, str]:
        """Returns the resource servers of the package in an interpreter, each with what it needs."""
        return list_servers(PREFIX + "NAME", python)

    @takes_options()
    def __init__(
        self,
        name: str,
        options: AdapterOptions,
        /,
        *,
        python: str | None = None,
        data: Rows | None = None,
        val_data: Rows | None = None,
        settings: Mapping[str, Any] | None = None,
        max_turns: int = 32,
        turn_rewards: bool = False,
        connections: int = 256,
    ) -> None:
        super().__init__(PREFIX + name, options)
        if max_turns < 1:
            raise ConfigurationError(f"{self.name}: max_turns={max_turns} allows no turn; give 1 or more")
        self._max_turns, self._turn_rewards = max_turns, turn_rewards
        self._sessions = EnvironmentServer(self.name, deadline_s=self._deadline_s, connections=connections)
        self._has_steps: bool | None = None
        """Whether the server is of the Gymnasium kind; None: it was not asked yet."""
        self._endpoint_holds_one_call = True
        """Whether the model's endpoint takes `parallel_tool_calls=False`, as far as is known."""
        self._server: ResourceServer | None = None
        self._address = name.rstrip("/")
        if not name.startswith(ADDRESSES):
            self._server = ResourceServer(self.name, name, python, settings or {})
            data = self._server.folder / "data" / "example.jsonl" if data is None else data
        elif data is None or python is not None or settings is not None:
            raise ConfigurationError(
                f"{self.name}: a server by its address needs data=FILE, and takes neither python nor settings"
            )
        self._found = split_rows(
            self.name,
            self._rows(data),
            None if val_data is None else self._rows(val_data),
            sizes=self._sizes,
            seed=self._seed,
        )

    def _rows(self, data: Rows) -> list[dict[str, Any]]:
        rows = read_rows(self.name, data)
        if not rows or any(not isinstance(row.get(ASKED), Mapping) for row in rows):
            raise ConfigurationError(
                f"{self.name}: {len(rows)} rows: each needs {ASKED!r}, the request of a rollout"
            )
        return rows

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the scenarios of a split: different rows, in the order of the seed."""
        check_split(self.name, split)
        return self._found[split]

    async def close(self) -> None:
        """Closes the connections, and ends the server that was started."""
        await self._sessions.close()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Plays one row in a session of its own; see `NamedEnvironment.rollout`."""
        with import_lock:
            from openai import BadRequestError

        calling = calling_of(scenario.data["row"][ASKED])
        one_call = {**calling, **self._request}.get(PARALLEL) is False
        limits = {"seed": seed, "temperature": temperature, "max_tokens": max_tokens}
        if not one_call or self._endpoint_holds_one_call:
            try:
                return await self._play(model, scenario, calling, one_call=one_call, **limits)
            except BadRequestError as refusal:  # of the first request: nothing was played
                if not one_call or refusal.param != PARALLEL:
                    raise
                self._endpoint_holds_one_call = False
        calling.pop(PARALLEL, None)
        return await self._play(model, scenario, calling, one_call=True, **limits)

    async def _play(
        self, model: Model, scenario: Scenario, calling: Mapping[str, Any], *, one_call: bool, **limits: Any
    ) -> Trajectory:
        """Plays the row. calling: what the requests say of calls. one_call: run the first call of a reply."""
        row = scenario.data["row"]
        address = self._address if self._server is None else await self._server.start()
        conversation = self._conversation(
            model,
            *chat_messages_of(row[ASKED]),
            tools=chat_tools_of(row[ASKED]),
            calling=calling,
            **limits,
        )
        session = self._sessions.open(address)
        if self._has_steps is None:
            self._has_steps = "/step" in (await session.ask("/openapi.json", None)).get("paths", ())
        play = self._play_steps if self._has_steps else self._play_calls
        reward, metrics = await play(session, conversation, row, one_call=one_call)
        turns = float(conversation.turns)
        return conversation.finish(
            scenario,
            reward=reward,
            metrics={**metrics, "turns": turns},
            show=f"{text_of_turns(conversation.trajectory.messages())}\n\nreward: {reward:g}",
            environment=self.name,
        )

    async def _play_calls(
        self,
        session: ServerSession,
        conversation: RolloutConversation,
        row: Mapping[str, Any],
        *,
        one_call: bool,
    ) -> tuple[float, dict[str, float]]:
        """Plays until a reply without a call. Returns the reward and the metrics of `/verify`."""
        await session.ask("/seed_session", row)
        items: list[dict[str, Any]] = []
        offered: Sequence[Any] = conversation.trajectory.tools or ()
        tools = {one["function"]["name"] for one in offered}
        ended = False
        while not ended and conversation.turns < self._max_turns:
            await conversation.ask()
            items += items_of_reply(conversation)
            calls = newest_calls(conversation)
            ended = not calls
            run = calls[:1] if one_call else calls
            for call in run:
                name, arguments = call.function.name, call.function.arguments
                result = await self._call(session, name, arguments) if name in tools else NO_TOOL
                items.append(output_item(call.id, result))
                conversation.add({"role": "tool", "tool_call_id": call.id, "content": result})
            items += refuse_calls(conversation, calls[len(run) :])
        verdict = await session.ask("/verify", {**row, "response": response_of(items, row[ASKED])})
        metrics = {
            key: float(value)
            for key, value in verdict.items()
            if key not in row and key != "reward" and isinstance(value, bool | int | float)
        }
        return finite_reward(self.name, verdict.get("reward")), {**metrics, "truncated": float(not ended)}

    async def _play_steps(
        self,
        session: ServerSession,
        conversation: RolloutConversation,
        row: Mapping[str, Any],
        *,
        one_call: bool,
    ) -> tuple[float, dict[str, float]]:
        """Plays until the server ends the episode. Returns the sum of its rewards."""
        answer = await session.ask("/reset", row)
        total, ended = 0.0, False
        while not ended and conversation.turns < self._max_turns:
            info = answer.get("info") or {}
            for output in info.get("tool_outputs", ()):
                conversation.add(tool_message(output))
            if answer.get("observation"):
                conversation.add({"role": "user", "content": content_of(answer["observation"])})
            await conversation.ask()
            items = items_of_reply(conversation)
            refused = refuse_calls(conversation, newest_calls(conversation)[1:] if one_call else ())
            response = response_of(items[: len(items) - len(refused)], row[ASKED])
            answer = await session.ask("/step", {**row, "response": response})
            earned = finite_reward(self.name, answer.get("reward"))
            if self._turn_rewards:
                reason = text_in(answer.get("info") or {}, "reason")
                conversation.reward_turn(earned, state=text_in(info, "state"), reason=reason)
            total += earned
            ended = bool(answer.get("terminated") or answer.get("truncated"))
        return total, {"truncated": float(not ended or bool(answer.get("truncated")))}

    async def _call(self, session: ServerSession, name: str, arguments: str) -> str:
        """Returns what a tool of the server gives, an error of it too. Raises EnvironmentFailedError."""
        try:
            given = parse_json(arguments)
        except ValueError as error:
            return json.dumps({"error": f"Invalid tool call arguments: {error!r}"})
        text = (await session.send(f"/{name}", given)).text
        if len(text) > MOST_CHARACTERS:
            raise EnvironmentFailedError(
                f"environment {self.name!r}: /{name} gave {len(text)} characters, more than {MOST_CHARACTERS}"
            )
        return text
