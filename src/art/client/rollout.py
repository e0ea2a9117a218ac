"""`art.rollout(model)`: an address and a key for any program, whose conversations become a trajectory.

    async with art.rollout(model) as r:
        await run_my_agent(env=r.env())            # any process, any language, any dialect
    r.trajectory.reward = score(...)

The server keeps what is said through either of them, so nothing depends on the program's client, on its
process, or on what it forgets of its own history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import ValidationError

from art.client.backends.remote_backend import RemoteBackend
from art.client.http.connection import ServerConnection
from art.errors import ARTError, ConfigurationError, NotRegisteredError
from art.process.imports import import_lock
from art.recording.captured_reply import note_choices
from art.recording.listeners import listening
from art.recording.recorder import Recorder, tools_key
from art.rollout_tasks import rollout_scope
from art.tracking.folders import stored_name
from art.trajectories import Trajectory
from art.wire.message_identity import prefix_keys
from art.wire.nested import HiddenKey
from art.wire.records import first_flaw
from art.wire.rollouts import (
    SAMPLE_FIELD,
    STEP_FIELD,
    TOKENS_FIELD,
    Exchange,
    ExchangeChoice,
    OpenRolloutRequest,
    RolloutExchanges,
    RolloutScope,
)

if TYPE_CHECKING:
    import openai

    from art.backend import AnyTrainableModel


def fill_trajectory(trajectory: Trajectory, exchanges: RolloutExchanges) -> None:
    """Write the conversations into the trajectory, in place of those that were in it.

    The conversation that began first is the main one; sub-agents, compacted contexts and branches are
    additional histories. Each sample is one choice of one history; where a later conversation repeats it, it
    is context. Every sample of the model is in it, except for replies that were lost on the way and asked
    for again. `metrics` get `forks`, and where there are any `superseded_samples` (those) and `base_samples`
    (the base model's, which are not trained).
    """
    heard = Trajectory(rollout_id=trajectory.rollout_id)
    recorder = Recorder(heard)
    asked = conversations(exchanges.exchanges)
    lost = {place for place, one in enumerate(exchanges.exchanges) if not one.delivered}
    left_out = superseded_exchanges(asked) & lost
    for place, (request, completion) in enumerate(asked):
        if place not in left_out:
            recorder.on_completion(request, completion, parent_id=exchanges.exchanges[place].parent_id)
    recorder.close()
    trajectory.messages_and_choices = heard.messages_and_choices
    trajectory.tools = heard.tools
    trajectory.additional_histories = heard.additional_histories
    steps = [choice.step for one in exchanges.exchanges for choice in one.choices if choice.step is not None]
    trajectory.initial_policy_version = min(steps, default=None)
    trajectory.final_policy_version = max(steps, default=None)
    trajectory.metrics["forks"] = sum(exchanges.forks.values())
    if left_out:
        trajectory.metrics["superseded_samples"] = sum(len(asked[n][1].choices) for n in left_out)
    if exchanges.unlisted_samples:
        trajectory.metrics["base_samples"] = exchanges.unlisted_samples


def conversations(exchanges: list[Exchange]) -> list[tuple[dict[str, Any], Any]]:
    """Each request, its messages whole, with its completion, in the order in which they were asked."""
    with import_lock:
        from openai.types.chat import ChatCompletion

    messages: dict[str, list[dict[str, Any]]] = {}
    pairs = []
    for one in exchanges:
        before = messages[one.extends][: one.shared] if one.extends is not None else []
        messages[one.request_id] = [*before, *one.messages]
        completion = ChatCompletion.model_validate(
            {
                "id": one.request_id,
                "object": "chat.completion",
                "created": int(one.created_at),
                "model": one.model,
                "choices": [_choice(choice) for choice in one.choices],
            }
        )
        call = {"started_at": one.created_at, "ended_at": one.ended_at, "prompt_tokens": one.prompt_tokens}
        note_choices(completion.choices, {name: value for name, value in call.items() if value is not None})
        pairs.append(({"messages": messages[one.request_id], "tools": one.tools}, completion))
    return pairs


def superseded_exchanges(asked: Sequence[tuple[dict[str, Any], Any]]) -> set[int]:
    """Places of requests that a client asked again, word by word, and of which it went on with the later
    reply alone: if the earlier reply was never delivered, that is a retry and no second turn.
    """
    ends: list[tuple[bytes, list[bytes]]] = []
    passed: set[bytes] = set()
    for request, completion in asked:
        keys = prefix_keys(request["messages"], tools_key(request["tools"]).encode())
        passed.update(keys[1:])
        replies = [choice.message.model_dump(mode="json") for choice in completion.choices]
        ends.append((keys[-1], [prefix_keys([reply], keys[-1])[-1] for reply in replies]))
    went_on = [any(reply in passed for reply in replies) for _, replies in ends]
    return {
        place
        for place, (end, replies) in enumerate(ends)
        if not went_on[place]
        and any(
            end == later and went_on[further] and replies != others
            for further, (later, others) in enumerate(ends[place + 1 :], place + 1)
        )
    }


def _choice(choice: ExchangeChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": choice.message,
        "finish_reason": choice.finish_reason,
        "logprobs": None,
        SAMPLE_FIELD: choice.sample_id,
        STEP_FIELD: choice.step,
        TOKENS_FIELD: choice.completion_tokens,
    }


_CURRENT: ContextVar[rollout | None] = ContextVar("art_rollout_scope", default=None)
_log = logging.getLogger(__name__)

_CHECK_S = 0.5
_ID_RULE = "an id has 1 to 128 letters, digits, '.', '_' and '-', and not only dots"
CLOSE_S = 60.0
"""The limit in seconds for which the end of a block waits for a server that does not answer."""


class rollout:  # lower case, as it is read: `async with art.rollout(model) as r`
    """One attempt by a program of any kind. Inside, `base_url` or `api_key` (either alone) say whose it is.

    rollout_id: a name of your own, new for each attempt; None: one is made. aliases: further names that the
    program may ask for and that stand for the model (`("gpt-4o-mini",)`; `("*",)`: any name); another name is
    refused with 404. allow_base: the base model's own name is the base model; what it says is context, never
    trained. step, pinned: let this step, or the newest at the start, answer throughout; by default each
    request is answered by the newest step. expires_s: seconds until the server closes it by itself.

    `with` works, too, outside of an event loop. After the block requests are refused (410), so that nothing
    is added to a trajectory that is in training. An exception passes, and the trajectory is kept.

    Raises ConfigurationError for settings that do not fit, NotRegisteredError, NotFoundError (no such step),
    ServerUnreachableError, RequestError (the id was used before).
    """

    def __init__(
        self,
        model: AnyTrainableModel,
        *,
        rollout_id: str | None = None,
        aliases: Sequence[str] = (),
        allow_base: bool = False,
        step: int | None = None,
        pinned: bool = False,
        expires_s: float = 86_400.0,
    ) -> None:
        if isinstance(aliases, str):
            raise ConfigurationError(f"aliases={aliases!r} is one name; give a list of names: ({aliases!r},)")
        if pinned and step is not None:
            raise ConfigurationError(
                f"step={step!r} and pinned=True: a rollout is pinned to a step already with step={step!r}"
            )
        self.model = model
        self.rollout_id = uuid4().hex if rollout_id is None else rollout_id
        self._asked = _request(
            project=model.project,
            name=stored_name(model),
            rollout_id=self.rollout_id,
            aliases=aliases,
            allow_base=allow_base,
            step=step,
            pinned=pinned,
            expires_s=expires_s,
        )
        self.forks: dict[str, int] = {}
        """Prompts that did not extend the ids of their conversation, by reason; filled with `trajectory`."""
        self.trajectory = Trajectory(rollout_id=self.rollout_id)
        """Filled when the block ends, or by `refresh`. Set its reward and metrics at any time."""
        self._scope: RolloutScope | None = None
        self._address = ""
        self._inside = ExitStack()
        self._watch: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        """OpenAI's base URL of this rollout, `.../r/{rollout_id}/v1`."""
        return f"{self.anthropic_base_url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """Anthropic's base URL of this rollout: its clients add `/v1` themselves."""
        return self._address + self._open_scope().path

    @property
    def api_key(self) -> str:
        """Opens the completions of this rollout alone, at `base_url` or at the model's own. A string, whose
        `repr` hides it.
        """
        return HiddenKey(self._open_scope().api_key)

    @property
    def model_name(self) -> str:
        """Returns the name to send as `model`; the model's bare name and the aliases are accepted too."""
        return self._open_scope().model

    def openai_client(self) -> openai.AsyncOpenAI:
        """A client of this rollout. All rollouts of a backend share its connections: one made by hand costs
        40 ms, in which the event loop does nothing else. Closing it closes nothing.
        """
        from art.client.http.openai_client import openai_client, sharing

        connection = _connection_of(self.model)
        if connection.completions is None:
            connection.completions = openai_client(
                base_url=self._address,
                api_key=self.api_key,
                revive=connection.revive,
                gone_s=connection.gone_s,
            )
        return sharing(connection.completions, base_url=self.base_url, api_key=self.api_key)

    def env(self) -> dict[str, str]:
        """Environment variables that clients of OpenAI and Anthropic read by themselves, for a subprocess."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": self.api_key,
        }

    async def refresh(self) -> Trajectory:
        """The trajectory so far: what was answered and committed until now."""
        await self._fetch_exchanges("GET", "")
        return self.trajectory

    async def __aenter__(self) -> rollout:
        await self._open()
        self._enter()
        self._watch = asyncio.create_task(_keep_server_alive(self.model))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.close()
        if self._watch is not None:
            self._watch.cancel()
        await self._close(error)

    def __enter__(self) -> rollout:
        _check_no_loop()
        asyncio.run(self._open())
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.close()
        asyncio.run(self._close(error))

    def _enter(self) -> None:
        # Our own clients inside belong to the same rollout. A capture around the block does not hear them:
        # they would be in two trajectories.
        self._inside.enter_context(rollout_scope(self.rollout_id))
        self._inside.enter_context(listening(None))
        token = _CURRENT.set(self)
        self._inside.callback(_CURRENT.reset, token)

    async def _open(self) -> None:
        if self._scope is not None:
            raise ConfigurationError(
                f"rollout {self.rollout_id!r} was entered before; make one with art.rollout(model) for each "
                "attempt"
            )
        connection = _connection_of(self.model)
        self._scope = await connection.call("POST", "/art/rollouts", RolloutScope, self._asked)
        self._address = str((await connection.client()).base_url).rstrip("/")

    async def _close(self, error: BaseException | None) -> None:
        try:
            await self._fetch_exchanges("POST", "/close")
        except ARTError as problem:
            if error is None:
                raise
            error.add_note(f"the end of rollout {self.rollout_id!r} failed, too: {problem}")
        self.trajectory.finish()

    async def _fetch_exchanges(self, method: str, verb: str) -> None:
        path = f"/art/rollouts/{self._open_scope().rollout_id}{verb}"
        connection = _connection_of(self.model)
        exchanges = await connection.call(method, path, RolloutExchanges, deadline_s=CLOSE_S)
        fill_trajectory(self.trajectory, exchanges)
        self.forks = exchanges.forks

    def _open_scope(self) -> RolloutScope:
        if self._scope is None:
            raise ConfigurationError(
                "this rollout is not open yet: use it as `async with art.rollout(model) as r`"
            )
        return self._scope

    def __repr__(self) -> str:
        return f"art.rollout({self.model.name!r}, rollout_id={self.rollout_id!r})"


def _request(**settings: Any) -> OpenRolloutRequest:
    try:
        return OpenRolloutRequest.model_validate(settings)
    except ValidationError as error:
        flaw = first_flaw(error)
        name = flaw.field.partition(".")[0]
        rule = _ID_RULE if name == "rollout_id" else flaw.problem
        raise ConfigurationError(f"art.rollout({name}={settings[name]!r:.200}): {rule}") from error


def current_rollout_scope() -> rollout | None:
    """The `art.rollout` whose block runs here, or None."""
    return _CURRENT.get()


def _connection_of(model: AnyTrainableModel) -> ServerConnection:
    backend: Any = model._backend
    if isinstance(backend, RemoteBackend):
        return backend._connection
    url, key = model.inference_base_url, model.inference_api_key
    if url is None or key is None:
        raise NotRegisteredError(
            f"model {model.name!r} has no endpoint yet: call `await model.register(backend)` first"
        )
    address = url.rstrip("/").removesuffix("/v1"), key

    async def known() -> tuple[str, str]:
        return address

    async def nothing() -> None:
        return None

    return ServerConnection(known, nothing)


async def _keep_server_alive(model: AnyTrainableModel) -> None:
    """The program inside cannot start our server again when it dies, so we look after it."""
    backend: Any = model._backend
    if not isinstance(backend, RemoteBackend) or type(backend)._revive is RemoteBackend._revive:
        return
    while True:
        await asyncio.sleep(_CHECK_S)
        try:
            await backend._revive()
        except ARTError as error:
            _log.error("the server of a running rollout cannot be started again: %s", error)
            return


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError("an event loop runs here: use `async with art.rollout(model) as r`")
