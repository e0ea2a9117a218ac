"""A trajectory that writes itself: the chat completions of a coroutine, whichever client asks for them.

At most one listener, the innermost, hears the completions of a context. Our clients tell it; of other
people's, whatever speaks through httpx (openai, litellm, langchain) is heard in a scope: the first open scope
puts a tap before `send` of the client classes, the last one takes it away. A tap passes on, untouched,
whatever was asked outside of a listener's context.

A coroutine whose result is something else hands a trajectory out with `yield_trajectory`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from pydantic import BaseModel

from art.client.recording.captured_reply import read_completion, watch_body
from art.client.recording.recorder import Recorder
from art.errors import NoTrajectoryError
from art.rollout_tasks import rollout_scope
from art.trajectories import Trajectory
from art.wire.rollouts import CALL_NOTE, ObservedCompletion

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion


class Listener(Protocol):
    """Receives completions in the order in which they complete."""

    on_close: list[Callable[[], None]]
    """A callback for each stream that has begun: it lets the listener hear at once what was read so far."""

    def on_completion(self, request: dict[str, Any], completion: ChatCompletion) -> None:
        """A completion, once it is whole or its stream was closed. request: `messages`, `tools`, ..."""


_LISTENER: ContextVar[Listener | None] = ContextVar("art_listener", default=None)


def current_listener() -> Listener | None:
    """Returns the listener of the completions requested here, or None."""
    return _LISTENER.get()


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Completions asked for inside are heard by `listener` alone; None: by nobody."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


PACKAGES = ("httpx", "httpx2")
"""openai moved from the first to the second; others stayed."""

_LOCK = threading.Lock()


@contextmanager
def capture_foreign_clients() -> Iterator[None]:
    """Chat completions of all HTTP clients that are asked for inside a `listening` reach the listener."""
    with ExitStack() as taps:
        for name in PACKAGES:
            if find_spec(name) is not None:
                package = import_module(name)
                taps.enter_context(_tapped(package.Client, _Tap))
                taps.enter_context(_tapped(package.AsyncClient, _AsyncTap))
        yield


@contextmanager
def _tapped(kind: Any, make: type[_Tap]) -> Iterator[None]:
    with _LOCK:
        tap = vars(kind)["send"]
        if not isinstance(tap, _Tap):
            tap = kind.send = make(tap)
        tap.scopes += 1
    try:
        yield
    finally:
        with _LOCK:
            tap.scopes -= 1
            # If somebody wrapped the tap since, it stays inside their wrapper, where it hears nobody.
            if not tap.scopes and vars(kind)["send"] is tap:
                kind.send = tap.send


class _Tap:
    """A method `send` that lets the current listener hear the response."""

    def __init__(self, send: Any) -> None:
        self.send = send
        self.scopes = 0

    def __get__(self, client: Any, kind: type | None = None) -> Any:
        return self if client is None else partial(self._send_recorded, client)

    def __call__(self, client: Any, *args: Any, **options: Any) -> Any:
        return self._send_recorded(client, *args, **options)

    def _send_recorded(self, client: Any, request: Any, *args: Any, **options: Any) -> Any:
        listener, started_at = current_listener(), time.time()
        with listening(None):  # a client that sends through another client is heard once
            response = self.send(client, request, *args, **options)
        _record_response(listener, request, response, started_at)
        return response


class _AsyncTap(_Tap):
    async def _send_recorded(self, client: Any, request: Any, *args: Any, **options: Any) -> Any:
        listener, started_at = current_listener(), time.time()
        with listening(None):
            response = await self.send(client, request, *args, **options)
        _record_response(listener, request, response, started_at)
        return response


def note_call(completion: ChatCompletion, started_at: float) -> None:
    """Notes in each choice when its completion was asked for and ended (now), and what was counted."""
    call: ObservedCompletion = {"started_at": started_at, "ended_at": max(started_at, time.time())}
    # Other servers leave fields out, or write something else there.
    if isinstance(model := getattr(completion, "model", None), str):
        call["model"] = model
    usage, choices = getattr(completion, "usage", None), getattr(completion, "choices", None) or []
    if isinstance(asked := getattr(usage, "prompt_tokens", None), int):
        call["prompt_tokens"] = asked
    if isinstance(given := getattr(usage, "completion_tokens", None), int) and len(choices) == 1:
        call["completion_tokens"] = given
    note_choices(choices, call)


def note_choices(choices: Sequence[object], call: Mapping[str, Any]) -> None:
    """Gives each choice of a reply its note. The first one has the tokens of the prompt, which they share."""
    for place, choice in enumerate(choices):
        if isinstance(choice, BaseModel):
            noted = {name: value for name, value in call.items() if place == 0 or name != "prompt_tokens"}
            setattr(choice, CALL_NOTE, noted)


def _record_response(listener: Listener | None, request: Any, response: Any, started_at: float) -> None:
    asked = _chat_request(request) if listener is not None and response.is_success else None
    if listener is None or asked is None:
        return

    def hear_body(body: bytes) -> None:
        kind = response.headers.get("content-type", "")
        # Some servers stream under any type, others answer whole whatever is asked.
        streamed = "event-stream" in kind or (bool(asked.get("stream")) and "json" not in kind)
        completion = read_completion(body, streamed=streamed)
        if completion is not None:
            note_call(completion, started_at)
            listener.on_completion(asked, completion)

    if (reading := watch_body(response, hear_body)) is not None:
        listener.on_close.append(partial(reading.hand_over, hear_body))


def _chat_request(request: Any) -> dict[str, Any] | None:
    """The body of a chat request; None for any other request."""
    if request.method != "POST" or "json" not in request.headers.get("content-type", ""):
        return None
    try:
        body = json.loads(request.content)
    except (ValueError, RuntimeError):  # no JSON after all, or a body that is sent as a stream
        return None
    return body if isinstance(body, dict) and isinstance(body.get("messages"), list) else None


_CAPTURED: ContextVar[Trajectory | None] = ContextVar("art_auto_trajectory", default=None)


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: bool = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """The trajectory that is being captured here, to set its reward and metrics; None outside of a capture.

    required: raise NoTrajectoryError (a RuntimeError) instead of giving None.
    """
    trajectory = _CAPTURED.get()
    if trajectory is None and required:
        raise NoTrajectoryError(
            "No auto trajectory in context. Run this code inside `await art.capture_auto_trajectory(...)`"
        )
    return trajectory


async def capture_auto_trajectory(coro: Awaitable[Any]) -> Trajectory:
    """Run `coro` and return the trajectory of its chat completions; its own result is dropped.

    Heard are our clients, and any client on httpx (openai, litellm, langchain) that is used inside, streams
    included. A request that repeats a conversation continues it; any other begins an additional history.
    Captures may be nested: the inner one hears. Each is a rollout of its own.
    """
    with rollout_scope():
        trajectory = Trajectory()
        with capture_foreign_clients(), _recorded(trajectory):
            await coro
    return trajectory.finish()


@contextmanager
def _recorded(trajectory: Trajectory) -> Iterator[None]:
    recorder = Recorder(trajectory)
    token = _CAPTURED.set(trajectory)
    try:
        with listening(recorder):
            yield
    finally:
        recorder.close()
        _CAPTURED.reset(token)


_YIELDED: ContextVar[list[Trajectory] | None] = ContextVar("art_yielded_trajectories", default=None)


def yield_trajectory(trajectory: Trajectory) -> None:
    """Hand a trajectory to the innermost `capture_yielded_trajectory`; the last one handed out counts.

    Raises NoTrajectoryError (a RuntimeError) outside of a capture.
    """
    yielded = _YIELDED.get()
    if yielded is None:
        raise NoTrajectoryError(
            "nobody captures this trajectory: run this inside `await art.capture_yielded_trajectory(...)`"
        )
    yielded.append(trajectory)


async def capture_yielded_trajectory(coro: Awaitable[Any]) -> Trajectory:
    """Run `coro`, as a rollout of its own, and return the trajectory that it yielded.

    Raises NoTrajectoryError (a RuntimeError) when it yielded none.
    """
    yielded: list[Trajectory] = []  # shared with the tasks that `coro` starts
    token = _YIELDED.set(yielded)
    try:
        with rollout_scope():
            await coro
    finally:
        _YIELDED.reset(token)
    if not yielded:
        raise NoTrajectoryError("No trajectory yielded: call `art.yield_trajectory(trajectory)` inside")
    return yielded[-1]
