"""Environments that an OpenEnv server runs: `find_environment("openenv:http://127.0.0.1:8000")`.

The environment's code runs in the server; here are its address and a session for each rollout. A scenario is
a seed for `reset`, the observation is what the model is told, its reply is the action, and the reward of a
rollout is the sum over its steps. Where the environment has tools, the model is offered them, and each call
is an action (openenv_tools.py).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

import httpx

from art.environments.adapters.environment import Scenario
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError, extra_needed
from art.process.foreign_files import ask_foreign_blocking, parse_json
from art.types import text_of_content
from art_extensions.environments.library_environment import (
    MOST_CHARACTERS,
    AdapterOptions,
    LibraryEnvironment,
    finite_reward,
    newest_calls,
    takes_options,
    text_of_turns,
)
from art_extensions.environments.observed_images import Content, image_address, image_part
from art_extensions.environments.openenv_tools import (
    ACT,
    CALL_FIELDS,
    LIST_TOOLS,
    ActionTools,
    InvalidActionError,
    call_fields,
    offer_action,
    offer_listed,
)

if TYPE_CHECKING:
    from art.environments.adapters.environment import RolloutConversation
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX, EXTRA = "openenv:", "openenv"
PACKAGE = "openenv-"
"""Begins the name of a package with an environment, as OpenEnv's own discovery has it."""
MOST_MEGABYTES = 16.0
"""Limit of one message of the server, and of its schemas."""
FULL_POLL_S = 1.0
"""Longest wait until a server that has no session left is asked again."""
FULL = "End other programs that use the server, or raise its max_concurrent_envs"
KINDS = ("action", "observation", "reset_observation")
"""The schemas that a server has."""
OWN_FIELDS = frozenset({"metadata", "done", "reward"})
"""What OpenEnv adds to the fields of actions and observations."""
_CODE = re.compile(r"\(code: (\w+)\)$")
"""The code at the end of an error of OpenEnv's client."""


@dataclass
class _Episode:
    """An episode so far."""

    observation: Content
    done: bool
    reward: float = 0.0
    invalid: int = 0
    """Replies and calls that were no action."""


class OpenEnvEnvironment(LibraryEnvironment):
    """An environment behind the address of a running OpenEnv server.

    options: a scenario is a seed for `reset`. action: the field of the action that takes the reply; None:
    its only field, else the reply is a JSON object of all fields. observation: the field that the model is
    told; None: all. image: the field that is shown as an image. tools: the model acts by tool calls; None:
    if the environment has tools and no `action` is given. max_turns: replies after which a rollout ends as
    truncated. turn_rewards: each reply earns the reward of its steps, for algorithms of turns. reset:
    further arguments of each `reset`. Raises ConfigurationError where no server of OpenEnv answers.
    """

    LIBRARY = "openenv"

    @staticmethod
    def installed_names() -> dict[str, str]:
        """Returns the form of an address, with the installed packages whose servers may have one."""
        from openenv.core import generic_client  # noqa: F401

        packages = sorted({one.name.lower() for one in distributions()})
        modules = [one.removeprefix(PACKAGE).replace("-", "_") for one in packages if one.startswith(PACKAGE)]
        servers = ", ".join(f"uvicorn {one}.server.app:app" for one in modules if one != "core")
        return {"http://HOST:PORT": f"a server that runs; of the packages here: {servers or 'none'}"}

    @takes_options()
    def __init__(
        self,
        name: str,
        options: AdapterOptions,
        /,
        *,
        action: str | None = None,
        observation: str | None = None,
        image: str | None = None,
        tools: bool | None = None,
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
        fields = schema["action"]["properties"]
        self._fields = {key: one for key, one in fields.items() if key not in OWN_FIELDS}
        has_tools = not self._fields or {*self._fields} >= CALL_FIELDS
        if tools and action is not None:
            raise ConfigurationError(f"{self.name}: tools=True fills all fields; leave action={action!r} out")
        self._calls_tools = has_tools and action is None if tools is None else tools
        self._offered = None if has_tools else offer_action(self._fields, schema["action"])
        """The tools; None: the environment lists them."""
        self._action = None if self._calls_tools else _action_field(self.name, self._fields, action)
        known = {**schema["observation"]["properties"], **schema["reset_observation"]["properties"]}
        for field in (observation, image):
            if field is not None and field not in known:
                raise ConfigurationError(
                    f"{self.name}: observations have no field {field!r}: {', '.join(known)}"
                )
        self._image = image
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

        A reply or a call that is no action of the environment is answered with the reason, and counted in the
        metric `invalid_actions`. A reply without a call ends the episode of an environment that lists tools.
        """
        async with self._session(scenario.data["seed"]) as (session, offered, result):
            conversation = self._conversation(
                model,
                seed=seed,
                temperature=temperature,
                max_tokens=max_tokens,
                tools=() if offered is None else offered.functions,
            )
            episode = _Episode(self._content(result.observation), bool(result.done))
            if offered is None:
                await self._play(conversation, session, episode)
            else:
                await self._play_calls(conversation, session, episode, offered)
        transcript = text_of_turns(conversation.trajectory.messages())
        last = text_of_content(episode.observation)
        return conversation.finish(
            scenario,
            reward=episode.reward,
            metrics={
                "turns": float(conversation.turns),
                "truncated": float(not episode.done and conversation.turns >= self._max_turns),
                "invalid_actions": float(episode.invalid),
            },
            show=f"{transcript}\n\nenvironment: {last}\nreward: {episode.reward:g}",
            environment=self.name,
        )

    async def _play(self, conversation: RolloutConversation, session: Any, episode: _Episode) -> None:
        """Plays an episode in which a reply is an action."""
        while not episode.done and conversation.turns < self._max_turns:
            conversation.add({"role": "user", "content": episode.observation})
            try:
                action = self._action_of(await conversation.ask())
                earned = await self._act(session, episode, action)
            except InvalidActionError as error:
                episode.observation, episode.invalid = f"Invalid action: {error}", episode.invalid + 1
                continue
            if self._turn_rewards:
                conversation.reward_turn(earned)

    async def _play_calls(
        self, conversation: RolloutConversation, session: Any, episode: _Episode, offered: ActionTools
    ) -> None:
        """Plays an episode in which each call of a tool is an action."""
        conversation.add({"role": "user", "content": episode.observation})
        while not episode.done and conversation.turns < self._max_turns:
            await conversation.ask()
            earned, calls = 0.0, newest_calls(conversation)
            if not calls and offered.listed:
                return
            if not calls:
                episode.invalid += 1
                conversation.add({"role": "user", "content": f"Invalid action: call the tool {ACT}"})
            for call in calls:
                try:
                    if episode.done:
                        raise InvalidActionError("the episode has ended")
                    action = offered.action_of(call.function.name, call.function.arguments)
                    earned += await self._act(session, episode, action)
                    result = episode.observation
                except InvalidActionError as error:
                    result, episode.invalid = f"Invalid action: {error}", episode.invalid + 1
                conversation.add({"role": "tool", "tool_call_id": call.id, "content": result})
            if self._turn_rewards:
                conversation.reward_turn(earned)

    async def _act(self, session: Any, episode: _Episode, action: Mapping[str, Any]) -> float:
        """Takes a step, which the episode is told, and returns its reward. Raises what `_call` raises."""
        result = await self._step(session, action)
        earned = 0.0 if result.reward is None else finite_reward(self.name, result.reward)
        episode.observation, episode.done = self._content(result.observation), bool(result.done)
        episode.reward += earned
        return earned

    @asynccontextmanager
    async def _session(self, seed: int) -> AsyncIterator[tuple[Any, ActionTools | None, Any]]:
        """Yields a session of the server, its tools if they are called, and what its `reset` told."""
        session, offered, result = await self._open(seed)
        self._sessions += 1
        try:
            yield session, offered, result
        finally:
            self._sessions -= 1
            await session.close()
            while self._waiting:
                if not (first := self._waiting.popleft()).done():
                    first.set_result(None)
                    break

    async def _open(self, seed: int) -> tuple[Any, ActionTools | None, Any]:
        """Returns a session, its tools, and what its `reset` told. A full server is asked again when a
        rollout ends, and for `deadline_s` where the sessions are other programs'.
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
                offered = await self._offer(session)
                return session, offered, await self._call("reset", session.reset(**self._reset, seed=seed))
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

    async def _offer(self, session: Any) -> ActionTools | None:
        """Returns the tools of a session that no `reset` has begun; None: none are called.

        Raises ConfigurationError where the environment has none, and what `_call` raises.
        """
        if not self._calls_tools or self._offered is not None:
            return self._offered if self._calls_tools else None
        # It is asked before `reset`: some environments count each action after it.
        answer = await self._call("the list of tools", session.step(LIST_TOOLS))
        offered = offer_listed(answer.observation)
        if not offered.functions:
            raise ConfigurationError(f"{self.name}: the environment lists no tools; give tools=False")
        return offered

    async def _step(self, session: Any, action: Mapping[str, Any]) -> Any:
        """Returns the result of an action. Raises what `_call` raises."""
        # The client of 0.10 opens another session in place of a closed one, whose world was never reset.
        if session._ws is None or session._ws.state.name != "OPEN":
            raise EnvironmentFailedError(
                f"environment {self.name!r}: step failed: the server closed the session"
            )
        return await self._call("step", session.step(action))

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
            if action != "step" and type(error).__name__ == "ConnectionClosedOK":
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

    def _content(self, observation: Mapping[str, Any]) -> Content:
        """Returns an observation as the content of a message. Raises EnvironmentFailedError."""
        if self._image is None or observation.get(self._image) is None:
            return self._text(observation)
        rest = {key: value for key, value in observation.items() if key != self._image}
        words = self._text(rest) if rest.keys() - OWN_FIELDS else ""
        shown = image_part(image_address(self.name, observation[self._image]))
        return [*([{"type": "text", "text": words}] if words else []), shown]

    def _text(self, observation: Mapping[str, Any]) -> str:
        """Returns an observation as the model is told it. Raises EnvironmentFailedError."""
        fields = {key: value for key, value in observation.items() if key not in OWN_FIELDS}
        fields = fields or dict(observation.get("metadata") or {})  # all that worlds of tools tell at first
        if self._calls_tools:
            fields = call_fields(fields)
        if self._observation is not None and self._observation in fields:  # that of a reset may have others
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


class FullServerError(EnvironmentFailedError):
    """The server has no session left."""


def _schema(full: str, url: str, deadline_s: float) -> dict[str, dict[str, Any]]:
    """Returns the JSON schemas of KINDS. Raises ConfigurationError."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{full}: write the address of a running server: openenv:http://HOST:PORT")
    with httpx.Client(timeout=deadline_s) as client:
        return read_schema(client, full, url, deadline_s)


def read_schema(client: httpx.Client, full: str, url: str, deadline_s: float) -> dict[str, dict[str, Any]]:
    """Returns the schemas that a server has. Raises ConfigurationError."""
    most = int(MOST_MEGABYTES * 2**20)
    try:
        answer = ask_foreign_blocking(
            client, "GET", f"{url}/schema", most_bytes=most, deadline_s=deadline_s
        ).raise_for_status()
        schema = {"reset_observation": {"properties": {}}, **parse_json(answer.content)}  # 0.3 has none
        for kind in KINDS:
            dict(schema[kind]["properties"])
        return {kind: schema[kind] for kind in KINDS}
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigurationError(
            f"{full}: no server of OpenEnv answers at {url}/schema ({type(error).__name__}: {error}). "
            "Start the environment, such as `uvicorn server.app:app --port 8000` or its Docker image, and "
            "give its address"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{full}: {url}/schema is no schema of OpenEnv: {error!r:.500}") from error


def _action_field(full: str, fields: Mapping[str, Any], chosen: str | None) -> str | None:
    """Returns the field that takes the reply; None where the reply has all. Raises ConfigurationError."""
    if chosen is not None and chosen not in fields:
        raise ConfigurationError(f"{full}: actions have no field {chosen!r}: {', '.join(fields)}")
    if not fields:
        raise ConfigurationError(
            f"{full}: its actions have no fields that a reply fills. If the environment has tools, leave "
            "tools=False out"
        )
    return next(iter(fields)) if len(fields) == 1 else chosen


def _kind(field: Mapping[str, Any]) -> str:
    """Returns the JSON type of a field."""
    kinds = [one.get("type", "any") for one in field.get("anyOf", [field])]
    return "string" if "enum" in field and "type" not in field else str(kinds[0])
