"""Environments that an OpenEnv server runs: `find_environment("openenv:http://127.0.0.1:8000")`.

The environment's code runs in the server; here are its address and a session for each rollout. A scenario is
a seed for `reset`, the observation is what the model is told, its reply is the action, and the reward of a
rollout is the sum over its steps.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx

from art.environments.adapters.environment import Scenario, text_of_messages
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError, extra_needed
from art.process.foreign_files import parse_json
from art_extensions.environments.library_environment import AdapterOptions, LibraryEnvironment, takes_options

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX, EXTRA = "openenv:", "openenv"
MOST_MEGABYTES = 16.0
"""Limit of one message of the server."""
MOST_CHARACTERS = 200_000
"""Limit of an observation as text: more is a picture or a file, which no message shows."""
FULL_POLL_S = 1.0
"""Longest wait until a server that has no session left is asked again."""
FULL = "End other programs that use the server, or raise its max_concurrent_envs"
OWN_FIELDS = frozenset({"metadata", "done", "reward"})
"""What OpenEnv adds to the fields of actions and observations."""
_CODE = re.compile(r"\(code: (\w+)\)$")
"""The code at the end of an error of OpenEnv's client."""


class OpenEnvEnvironment(LibraryEnvironment):
    """An environment behind the address of a running OpenEnv server.

    options: a scenario is a seed for `reset`. action: the field of the action that takes the reply; None: its
    only field, else the reply is a JSON object of all fields. observation: the field that the model is told;
    None: all. max_turns: replies after which a rollout ends as truncated. turn_rewards: each reply earns the
    reward of its step, for algorithms of turns. reset: further arguments of each `reset`. Raises
    ConfigurationError where no server of OpenEnv answers.
    """

    @takes_options()
    def __init__(
        self,
        name: str,
        options: AdapterOptions,
        /,
        *,
        action: str | None = None,
        observation: str | None = None,
        max_turns: int = 32,
        turn_rewards: bool = False,
        reset: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(PREFIX + name, options)
        if max_turns < 1:
            raise ConfigurationError(f"{self.name}: max_turns={max_turns} allows no turn; give 1 or more")
        with extra_needed(EXTRA, f"environment {self.name!r}"):
            from openenv.core.generic_client import GenericEnvClient
        self._client, self._url = GenericEnvClient, name.rstrip("/")
        schema = _schema(self.name, self._url, self._deadline_s)
        self._fields = {key: one for key, one in schema["action"].items() if key not in OWN_FIELDS}
        self._action = _action_field(self.name, self._fields, action)
        if observation is not None and observation not in schema["observation"]:
            raise ConfigurationError(
                f"{self.name}: observations have no field {observation!r}: {', '.join(schema['observation'])}"
            )
        self._observation, self._max_turns, self._reset = observation, max_turns, dict(reset or {})
        self._turn_rewards = turn_rewards
        self._sessions = 0
        """Sessions that rollouts have now."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Rollouts that the server had no session for."""

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the scenarios of a split: seeds for `reset`."""
        return [Scenario(f"{self.name}/{seed}", {"seed": seed}) for seed in self._scenario_seeds(split)]

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Plays one episode in a session of its own; see `NamedEnvironment.rollout`.

        A reply that is no action of the environment is answered with the reason, and counted in the metric
        `invalid_actions`.
        """
        conversation = self._conversation(model, seed=seed, temperature=temperature, max_tokens=max_tokens)
        total, invalid = 0.0, 0
        async with self._session(scenario.data["seed"]) as (session, result):
            observation, done = self._text(result.observation), bool(result.done)
            while not done and conversation.turns < self._max_turns:
                conversation.add({"role": "user", "content": observation})
                try:
                    action = self._action_of(await conversation.ask())
                    result = await self._call("step", session.step(action))
                except InvalidActionError as error:
                    observation, invalid = f"Invalid action: {error}", invalid + 1
                    continue
                observation, done = self._text(result.observation), bool(result.done)
                total += float(result.reward or 0)
                if self._turn_rewards:
                    conversation.reward_turn(float(result.reward or 0))
        transcript = text_of_messages(conversation.trajectory.messages())
        return conversation.finish(
            scenario,
            reward=total,
            metrics={
                "turns": float(conversation.turns),
                "truncated": float(not done),
                "invalid_actions": float(invalid),
            },
            show=f"{transcript}\n\nenvironment: {observation}\nreward: {total:g}",
            environment=self.name,
        )

    @asynccontextmanager
    async def _session(self, seed: int) -> AsyncIterator[tuple[Any, Any]]:
        """Yields a session of the server, and what its `reset` told."""
        session, result = await self._open(seed)
        self._sessions += 1
        try:
            yield session, result
        finally:
            self._sessions -= 1
            await session.close()
            while self._waiting:
                if not (first := self._waiting.popleft()).done():
                    first.set_result(None)
                    break

    async def _open(self, seed: int) -> tuple[Any, Any]:
        """Returns a session and what its `reset` told. A full server is asked again when a rollout ends, and
        for `deadline_s` where the sessions are other programs'.
        """
        full_since = time.monotonic()
        while True:
            session = self._client(
                self._url,
                connect_timeout_s=self._deadline_s,
                message_timeout_s=self._deadline_s,
                max_message_size_mb=MOST_MEGABYTES,
                mode="simulation",
            )
            try:
                return session, await self._call("reset", session.reset(**self._reset, seed=seed))
            except FullServerError:
                await session.close()
                if self._sessions:
                    full_since = time.monotonic()
                elif time.monotonic() - full_since > self._deadline_s:
                    raise
            except BaseException:
                await session.close()
                raise
            ended = asyncio.get_running_loop().create_future()
            self._waiting.append(ended)
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL_POLL_S):
                    await ended

    async def _call(self, action: str, answer: Awaitable[Any]) -> Any:
        """Returns what the server answers. Raises EnvironmentFailedError, InvalidActionError."""
        failed = f"environment {self.name!r}: {action} failed"
        try:
            async with asyncio.timeout(self._deadline_s):
                return await answer
        except TimeoutError as error:
            raise EnvironmentTimeoutError(
                f"environment {self.name!r}: {action} did not answer within {self._deadline_s:g} s"
            ) from error
        except RuntimeError as error:  # an error that the server tells
            code = _CODE.search(str(error))
            if code is not None and code[1] == "CAPACITY_REACHED":
                raise FullServerError(f"{failed}: {error}. {FULL}") from error
            if code is not None and code[1] == "VALIDATION_ERROR" and action == "step":
                raise InvalidActionError(f"its fields are {self._fields_said()}") from error
            raise EnvironmentFailedError(f"{failed}: {error}") from error
        except Exception as error:  # the connection's, of websockets
            if action == "reset" and type(error).__name__ == "ConnectionClosedOK":
                # A full server tells it and closes: at times before it has read what it was sent.
                raise FullServerError(f"{failed}: the server closed the session at once. {FULL}") from error
            raise EnvironmentFailedError(f"{failed}: {type(error).__name__}: {error}") from error

    def _action_of(self, reply: str) -> dict[str, Any]:
        """Returns the action that a reply is. Raises InvalidActionError."""
        if self._action is not None and _kind(self._fields[self._action]) == "string":
            return {self._action: reply}
        try:
            value = parse_json(reply)
        except ValueError as error:
            raise InvalidActionError(f"this is no JSON ({error})") from error
        if self._action is not None:
            return {self._action: value}
        if not isinstance(value, dict):
            raise InvalidActionError(f"reply with a JSON object of the fields {self._fields_said()}")
        return value

    def _fields_said(self) -> str:
        return ", ".join(f"{name} ({_kind(one)})" for name, one in self._fields.items())

    def _text(self, observation: Mapping[str, Any]) -> str:
        """Returns an observation as the model is told it. Raises EnvironmentFailedError."""
        fields = {key: value for key, value in observation.items() if key not in OWN_FIELDS}
        if self._observation is not None:
            fields = {self._observation: fields[self._observation]}
        shown = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
        text = next(iter(shown.values())) if len(shown) == 1 else "\n".join(map(": ".join, shown.items()))
        if len(text) > MOST_CHARACTERS:
            sizes = ", ".join(f"{key} ({len(value)})" for key, value in shown.items())
            raise EnvironmentFailedError(
                f"environment {self.name!r}: the observation has {len(text)} characters, more than "
                f"{MOST_CHARACTERS}: choose a field by observation=FIELD: {sizes}"
            )
        return text


class InvalidActionError(Exception):
    """A reply is no action of the environment; the message tells the model why."""


class FullServerError(EnvironmentFailedError):
    """The server has no session left."""


def _schema(full: str, url: str, deadline_s: float) -> dict[str, dict[str, Any]]:
    """Returns the fields of actions and observations, by name. Raises ConfigurationError."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{full}: write the address of a running server: openenv:http://HOST:PORT")
    try:
        answer = httpx.get(f"{url}/schema", timeout=deadline_s)
        answer.raise_for_status()
        schema = answer.json()
        return {kind: dict(schema[kind]["properties"]) for kind in ("action", "observation")}
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigurationError(
            f"{full}: no server of OpenEnv answers at {url}/schema ({type(error).__name__}: {error}). "
            "Start the environment, such as `uvicorn server.app:app --port 8000` or its Docker image, and "
            "give its address"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{full}: {url}/schema is no schema of OpenEnv 0.3: {error!r}") from error


def _action_field(full: str, fields: Mapping[str, Any], chosen: str | None) -> str | None:
    """Returns the field that takes the reply; None where the reply has all. Raises ConfigurationError."""
    if chosen is not None and chosen not in fields:
        raise ConfigurationError(f"{full}: actions have no field {chosen!r}: {', '.join(fields)}")
    if not fields:
        raise ConfigurationError(
            f"{full}: its actions have no fields, as those of a server of tools. Train on its tools by their "
            "MCP address: `art mcp train`"
        )
    return next(iter(fields)) if len(fields) == 1 else chosen


def _kind(field: Mapping[str, Any]) -> str:
    """Returns the JSON type of a field."""
    kinds = [one.get("type", "any") for one in field.get("anyOf", [field])]
    return "string" if "enum" in field and "type" not in field else str(kinds[0])
