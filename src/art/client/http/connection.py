"""The control connection to a server: calls that are asked again when the connection is lost.

Beside it: where a model is found on a server, what belongs to one event loop (connections cannot move
between loops), and the way from what a server answers to the exceptions of `art.errors`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote
from urllib.request import getproxies

import httpx
from pydantic import BaseModel

from art import errors
from art.errors import BackendClosedError, NodeLostError, OverloadedError, ServerUnreachableError, WorkerError
from art.process.interrupt import ShortCancellation
from art.process.resources import MORE_FILES, file_limit
from art.tracking.folders import stored_name
from art.wire.models import ErrorBody
from art.wire.records import read_reply

if TYPE_CHECKING:
    from art.backend import AnyModel


ERROR_KINDS: dict[str, type[errors.ARTError]] = {
    "node_lost": errors.NodeLostError,
    "worker_died": errors.WorkerDiedError,
    "worker_stalled": errors.WorkerStalledError,
    "worker_failed": errors.WorkerError,
    "deadline_exceeded": errors.DeadlineError,
    "invalid_configuration": errors.ConfigurationError,
    "no_checkpoints": errors.CheckpointMissingError,
    "disk_error": errors.DiskError,
    "step_missing": errors.StepMissingError,
    "canary_failed": errors.CanaryError,
}
"""The classes of errors that are not about the request, by their codes."""


def job_error(message: str, code: str | None) -> errors.ARTError:
    """The error of a failed job. `code` names its class, or (like `step_conflict`) why it was refused."""
    kind = getattr(errors, code or "TrainingError", None)
    if isinstance(kind, type) and issubclass(kind, errors.ARTError):
        if issubclass(kind, errors.ServerError):
            return kind(message, status=400, code=code)
        return kind(message)
    if code in ERROR_KINDS:
        return ERROR_KINDS[code](message)
    if code is not None and code.endswith("_not_found"):
        return errors.NotFoundError(message, status=404, code=code)
    return errors.RequestError(message, status=409, code=code)


def response_error(response: httpx.Response, asked: str) -> errors.ARTError:
    """The error of a response with status >= 400. Its body must have been read. `asked` names the request; a
    message of ART's server stands without it, as it says what was wrong.
    """
    status, body = response.status_code, _body(response)
    message = body.message if body.type != _FOREIGN else f"{asked}: {body.message}"
    if body.code in ERROR_KINDS:
        return ERROR_KINDS[body.code](message)
    if status in (401, 403):
        return errors.AuthenticationError(message, status=status, code=body.code)
    if status == 404:
        return errors.NotFoundError(message, status=status, code=body.code)
    pause = retry_after(response)
    if status == 429 or (status == 503 and pause is not None):
        return errors.OverloadedError(message, status=status, code=body.code, retry_after=pause or 1.0)
    if 400 <= status < 500:
        return errors.RequestError(message, status=status, code=body.code)
    return errors.ServerError(message, status=status, code=body.code)


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of the Retry-After header, or None."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "")))
    except ValueError:
        return None


_FOREIGN = "?"
"""The type of an error whose body is not in the form of ART's server."""


def _body(response: httpx.Response) -> ErrorBody:
    try:
        found = json.loads(response.content)["error"]
        known = {name: found.get(name) for name in ErrorBody.model_fields}
        return ErrorBody(**{**known, "message": str(found["message"]), "type": str(found.get("type"))})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ErrorBody.model_validate(
            {"message": f"status {response.status_code}: {response.text[:500]!r}", "type": _FOREIGN}
        )


def model_path(model: AnyModel) -> str:
    """The route of a model; others lie below it."""
    return named_path(model.project, stored_name(model))


def named_path(project: str, name: str) -> str:
    """The same of a model that is known by its names alone."""
    return f"/art/models/{quote(project, safe='')}/{quote(name, safe='')}"


T = TypeVar("T")


class PerLoop(Generic[T]):
    """A value for each event loop, made when that loop first asks. Several threads may ask.

    A notebook or a program that calls `asyncio.run` again and again has many loops: what belongs to a closed
    one is let go when the next loop comes.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        # Not weak: connections refer to their loop, so a weak key would live as long as its value.
        self._values: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    def get(self) -> T:
        """The value of the running loop."""
        loop = asyncio.get_running_loop()
        value = self._values.get(loop)
        if value is None:
            value = self._make()
            with self._lock:
                for closed in [other for other in self._values if other.is_closed()]:
                    del self._values[closed]
                self._values[loop] = value
        return value

    def pop(self) -> T | None:
        """The running loop's value, which is forgotten here; None if there is none."""
        with self._lock:
            return self._values.pop(asyncio.get_running_loop(), None)

    def alive(self) -> Iterator[T]:
        """The values of all loops that are not closed."""
        with self._lock:
            values = list(self._values.items())
        return (value for loop, value in values if not loop.is_closed())


SPARE_FILES = 256
"""File descriptors left to the rest of the program when a pool of connections is full."""


def file_budget() -> int:
    """Returns how many connections a pool may hold: thousands, unless the process may not open so many
    files.
    """
    return max(64, min(4096, file_limit() - SPARE_FILES))


def files_advice(error: BaseException | None) -> str:
    """Returns what to do where it was this process that could open nothing more; else nothing."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            return f". This program has no descriptor left. {MORE_FILES}, or run fewer rollouts at once"
        error = error.__cause__ or error.__context__ or next(iter(getattr(error, "exceptions", ())), None)
    return ""


SILENT_S, ASK_EVERY_S, GIVE_UP_S = 20, 5, 40
"""When the system asks a peer that sent nothing whether it is there, how often, and when it stops."""


def silent_peer_options() -> list[tuple[int, int, int]]:
    """Socket options that end a connection whose peer is gone without a word, in less than a minute: a
    completion may take as long as it takes, and nothing else says that its machine is there.
    """
    values = {
        "TCP_KEEPIDLE": SILENT_S,
        "TCP_KEEPALIVE": SILENT_S,  # its name on macOS
        "TCP_KEEPINTVL": ASK_EVERY_S,
        "TCP_KEEPCNT": (GIVE_UP_S - SILENT_S) // ASK_EVERY_S,
        "TCP_USER_TIMEOUT": 1000 * GIVE_UP_S,  # of what was sent and not acknowledged
    }
    known = [(getattr(socket, name), value) for name, value in values.items() if hasattr(socket, name)]
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in known),
    ]


def straight_transport(package: Any, *, trust_env: bool, **options: Any) -> Callable[[], Any] | None:
    """Returns what makes transports with these options for `package` (httpx or httpx2); None where the
    environment has proxies, which the package reads for transports of its own alone.
    """
    if trust_env and getproxies():
        return None
    return partial(
        package.AsyncHTTPTransport, trust_env=trust_env, socket_options=silent_peer_options(), **options
    )


M = TypeVar("M", bound=BaseModel)
CONNECT_S = 5.0
TIMEOUT_S = 1200.0
"""The timeout in seconds of one try at a completion."""
GONE_S = 45.0
"""A server at whose address nobody answers for so long is gone. A restart takes less, and a program hears of
one that is gone within a minute."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""The pauses between two tries."""
WORKER_FAILURES = 3
"""A failed worker is started again by the server; one that fails so often in one call will not come up."""


class Absence:
    """Counts how long a caller has met nobody: each try at a restarting server is lost, until one is not.

    Pauses count, and connections that nobody takes. What a request took that somebody worked on does not, nor
    does the time in which `revive` starts the server: that has a deadline of its own.
    """

    def __init__(self, most_s: float) -> None:
        """most_s: seconds between the first lost try and the last one."""
        self._most_s = self._left_s = most_s
        self._pause_s = FIRST_PAUSE_S

    async def wait(self, revive: Callable[[], Awaitable[object]], lost: str, error: Exception) -> float:
        """Wait until the next try. lost: what was lost, for the message. Returns the seconds of `revive`.

        Raises ServerUnreachableError where the next try would come too late, and what `revive` raises.
        """
        if type(error).__name__ == "ConnectTimeout":  # of httpx or of httpx2
            self._left_s -= CONNECT_S
        self._left_s -= self._pause_s
        if self._left_s < 0:
            lost += files_advice(error)
            raise ServerUnreachableError(f"nobody answers within {self._most_s:g} s: {lost}") from error
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await revive()
        revived_s = loop.time() - begun
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
        return revived_s


class ServerConnection:
    """JSON calls with a bearer key. `revive` is awaited when nobody answers: it may start the server
    again. `state` says for messages what the server does, where that is known. gone_s: a server that takes
    no connection for so many seconds is gone.
    """

    def __init__(
        self,
        address: Callable[[], Awaitable[tuple[str, str]]],
        revive: Callable[[], Awaitable[None]],
        state: Callable[[], str] | None = None,
        *,
        gone_s: float = GONE_S,
    ) -> None:
        self._address, self._revive, self._state = address, revive, state
        self.gone_s = gone_s
        self.completions: Any = None
        """The client whose connections those of all rollouts share; closed with this one."""
        self._closed = False
        self._clients: PerLoop[dict[tuple[str, str], httpx.AsyncClient]] = PerLoop(dict)

    async def client(self) -> httpx.AsyncClient:
        """The HTTP client of this event loop: connections cannot move between loops. Raises
        BackendClosedError after `close`.
        """
        self.check_open()
        url, key = await self._address()
        clients = self._clients.get()
        if (url, key) not in clients:
            trust_env = not url.startswith("http://127.0.0.1")
            straight = straight_transport(httpx, trust_env=trust_env)
            clients[url, key] = httpx.AsyncClient(
                base_url=url,
                headers={"authorization": f"Bearer {key}"},
                trust_env=trust_env,
                transport=straight and straight(),
            )
        return clients[url, key]

    async def revive(self) -> None:
        """Runs when the server did not answer."""
        await self._revive()

    def state(self, error: Exception | None) -> str:
        """Returns a description of a server that gave no answer."""
        if self._state is not None:
            return self._state()
        if error is None or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return "is the server running and the address right?"
        if isinstance(error, httpx.TimeoutException):
            return "it takes connections and answers nothing: it is frozen, or far too busy"
        return "it breaks connections off: it is ending, or starting again"

    async def call(
        self,
        method: str,
        path: str,
        reply: type[M],
        body: BaseModel | None = None,
        *,
        deadline_s: float = 120.0,
    ) -> M:
        """Ask until there is an answer: every route is safe to ask twice.

        Raises ServerUnreachableError when nobody answered within `deadline_s` seconds, or took a connection
        within `gone_s`, OverloadedError when the queue stayed full for `deadline_s`, WorkerError when a
        worker failed three times, and else the error of the answer.
        """
        loop = asyncio.get_running_loop()
        until, failed_workers, absence = loop.time() + deadline_s, 0, Absence(self.gone_s)
        content = body.model_dump_json() if body is not None else None
        while True:
            client = await self.client()
            try:
                with ShortCancellation():
                    response = await client.request(
                        method,
                        path,
                        content=content,
                        headers={"content-type": "application/json"} if content else None,
                        timeout=httpx.Timeout(max(1.0, until - loop.time()), connect=CONNECT_S),
                    )
            except httpx.TransportError as error:
                what = f"{method} {client.base_url}{path} ({type(error).__name__}: {error})"
                lost = f"{what}: {self.state(error)}"
                if loop.time() + FIRST_PAUSE_S > until:
                    lost += files_advice(error)
                    raise ServerUnreachableError(f"nobody answers within {deadline_s:g} s: {lost}") from error
                until += await absence.wait(self.revive, lost, error)
                continue
            if response.status_code < 400:
                return read_reply(reply, response.content)
            absence, failure = Absence(self.gone_s), response_error(response, f"{method} {path}")
            # A lost machine says nothing of what was asked for.
            failed_workers += isinstance(failure, WorkerError) and not isinstance(failure, NodeLostError)
            again = isinstance(failure, OverloadedError | WorkerError) and failed_workers < WORKER_FAILURES
            pause = getattr(failure, "retry_after", 1.0)
            if not again or loop.time() + pause > until:
                raise failure
            await asyncio.sleep(pause)

    def check_open(self) -> None:
        """Raises BackendClosedError after `close` or `refuse_calls`."""
        if self._closed:
            raise BackendClosedError("the backend is closed: make a new one, and register the model with it")

    def refuse_calls(self) -> None:
        """Refuses all further calls."""
        self._closed = True

    async def close(self) -> None:
        """Close the connections of this event loop; those of others close with theirs. No call is taken
        afterwards.
        """
        self.refuse_calls()
        completions, self.completions = self.completions, None
        if completions is not None:
            await completions.close()
        for client in (self._clients.pop() or {}).values():
            await client.aclose()
