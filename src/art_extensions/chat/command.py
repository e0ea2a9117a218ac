"""`art chat`: a conversation with a served model in the terminal, or one answer for a script.

The model answers from the server of the data folder: the one that runs there, else one that is started for
the time of the conversation. A base model needs no folder: its server works in a temporary one.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli.model_summaries import Url, read_summaries, server_backend
from art.cli.model_verbs import DataDir, printable, readable_errors
from art.errors import ARTError, ConfigurationError, DeadlineError, NotFoundError, require_extra
from art.process.imports import import_lock

if TYPE_CHECKING:
    import openai

    from art.client.backends.local_backend import LocalBackend
    from art.wire.models import RegisterRequest

PROMPT = "you> "
HINT = "/reset begins a new conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer."
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
POLL_S = 0.2
LOAD_S = 1800.0
"""Within which a base model must be loaded; a hub's may have to be downloaded first."""


def chat(
    model: Annotated[
        str,
        typer.Argument(help="The model: PROJECT/NAME[@STEP], a built-in one, a folder, a hub name."),
    ],
    once: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Send this text, print the answer, and end.")
    ] = None,
    system_prompt: Annotated[str | None, typer.Option(help="The system message.")] = None,
    temperature: Annotated[float | None, typer.Option(help="The sampling temperature. 0: greedy.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens of this mass.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The most tokens of an answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the samples.")] = None,
    data_dir: DataDir = Path(".art"),
    url: Url = None,
) -> None:
    """Talk to a model: through the server of the data folder, or one that is started and stopped.

    Text from standard input is sent as one message: `echo hello | art chat games/player`.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is stopped
    text = once
    if text is None and not sys.stdin.isatty():
        text = sys.stdin.read().strip()
    with readable_errors():
        if text is not None and not text:
            raise ConfigurationError("there is no text to send: give it with --once, or on standard input")
        sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        chosen = {name: value for name, value in sampling.items() if value is not None}
        with conversation(model, url, data_dir, system_prompt, chosen) as talk:
            if text is None:
                converse(talk)
            else:
                talk.answer(text)


class AnswerError(ARTError):
    """The server refused a message, or broke the answer off."""


@dataclass
class ChatSession:
    """The messages so far, and the client that asks for answers."""

    client: openai.OpenAI
    model: str
    sampling: dict[str, Any]
    messages: list[dict[str, Any]]

    def answer(self, text: str) -> None:
        """Send a message and print the answer as it comes. Raises AnswerError, and forgets the message."""
        import httpx

        with import_lock:
            import openai

        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        finished = False
        try:
            asked: dict[str, Any] = {"model": self.model, "messages": self.messages, **self.sampling}
            stream: openai.Stream[Any] = self.client.chat.completions.create(stream=True, **asked)
            for chunk in stream:
                for choice in chunk.choices:
                    show_delta(choice.delta, pieces)
                    if choice.finish_reason == "length":
                        say_aside("\n(the answer reached its limit of tokens)")
            finished = True
        except (openai.OpenAIError, httpx.HTTPError) as error:
            body = getattr(error, "body", None)
            message = body.get("message") if isinstance(body, dict) else None
            raise AnswerError(str(message or error)) from error
        finally:
            if finished or pieces:
                sys.stdout.write("\n")
                sys.stdout.flush()
            if finished:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()

    def reset(self) -> None:
        """Begin a new conversation; the system message stays."""
        self.messages = [one for one in self.messages if one["role"] == "system"]


def show_delta(delta: Any, said: list[str]) -> None:
    """Prints a piece of an answer; what was thought and called stands aside."""
    if thought := getattr(delta, "reasoning_content", None):
        say_aside(thought)
    if delta.content:
        said.append(delta.content)
        sys.stdout.write(printable(delta.content) if sys.stdout.isatty() else delta.content)
        sys.stdout.flush()
    for call in delta.tool_calls or ():
        name = f"\n[calls {call.function.name}] " if call.function and call.function.name else ""
        say_aside(name + ((call.function and call.function.arguments) or ""))


def say_aside(text: str) -> None:
    """Writes to standard error, dim on a terminal: standard output has the answer alone."""
    terminal = sys.stderr.isatty()
    sys.stderr.write(f"{DIM}{printable(text)}{PLAIN}" if terminal else text)
    sys.stderr.flush()


def converse(talk: ChatSession) -> None:
    """Reads messages from the terminal until the end."""
    with suppress(ImportError):  # line editing, where the platform has it
        import readline  # noqa: F401
    say_aside(f"{talk.model}: {HINT}\n")
    while True:
        try:
            text = input(PROMPT).strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            continue
        if text in ("/exit", "/quit"):
            return
        if text == "/reset":
            talk.reset()
        elif text.startswith("/"):
            say_aside(f"{HINT}\n")
        elif text:
            try:
                talk.answer(text)
            except KeyboardInterrupt:
                say_aside("(stopped)\n")
            except AnswerError as error:
                say_aside(f"{error}\n")


@contextmanager
def conversation(
    model: str, url: str | None, data_dir: Path, system: str | None, sampling: dict[str, Any]
) -> Iterator[ChatSession]:
    """Yields a conversation with a model that is served. Raises ARTError where it cannot be."""
    with import_lock:
        import openai

    messages = [] if system is None else [{"role": "system", "content": system}]
    with endpoint(model, url, data_dir) as (address, key, name):
        with openai.OpenAI(base_url=f"{address}/v1", api_key=key, timeout=1200.0) as client:
            yield ChatSession(client, name, sampling, list(messages))


@contextmanager
def endpoint(model: str, url: str | None, data_dir: Path) -> Iterator[tuple[str, str, str]]:
    """Yields the address and the key of a server that serves the model, and its name there."""
    if url is not None:
        address, key = asyncio.run(server_backend(url)._address())
        yield address, key, model
        return
    registered, base = known_model(model, data_dir)
    require_extra("local", "art chat", remedy=". For a server on another machine, use --url")
    from art.client.backends.local_backend import LocalBackend
    from art.process.running_server import find_server

    running = find_server(data_dir.absolute() / "server")
    folder = None
    if running is None:
        say_aside(f"starting a server for {model} ...\n")
        if registered is None:
            folder = tempfile.TemporaryDirectory(prefix="art-chat-")
    options = {"control": {"base_models": [base]}} if folder else {}
    try:
        with LocalBackend(path=folder.name if folder else data_dir, server_options=options) as backend:
            address, key = asyncio.run(backend._address())
            if registered is not None:
                asyncio.run(serve_registered(backend, registered))
            elif folder is not None:
                wait_until_served(address, key, base)
            yield address, key, model if registered is not None else base
    finally:
        if folder is not None:
            folder.cleanup()


def known_model(model: str, data_dir: Path) -> tuple[RegisterRequest | None, str]:
    """Returns how a registered model was registered, or None for a base model, and the name of its base.

    Raises NotFoundError for a name that can be neither.
    """
    from art.engine.base_models import is_file_name, is_folder, resolve_base
    from art.server.checkpoints.registered_models import RegisteredModels
    from art.server.data_folder import DataLayout
    from art.wire.models import RegisterRequest, find_summary

    summaries = read_summaries(data_dir, None)
    try:
        found = find_summary(model.partition("@")[0], summaries)
    except NotFoundError:
        project, slash, _ = model.partition("/")
        if project in {one.project for one in summaries} or not (
            slash or is_folder(model) or is_file_name(model)
        ):
            raise
        return None, resolve_base(model).name
    registration = RegisteredModels(DataLayout(data_dir.resolve())).get(found.project, found.name)
    asked = registration.model_dump(include=set(RegisterRequest.model_fields))
    return RegisterRequest(**asked), found.base_model


async def serve_registered(backend: LocalBackend, request: RegisterRequest) -> None:
    """Has the server serve a model as it was registered. Raises ARTError."""
    from art.client.requests.registration import REGISTER_S
    from art.wire.models import ModelInfo

    await backend._connection.call("POST", "/art/models", ModelInfo, request, deadline_s=REGISTER_S)


def wait_until_served(address: str, key: str, base: str) -> None:
    """Blocks until a base model is served. Raises ConfigurationError where it cannot be, DeadlineError."""
    import httpx

    deadline = time.monotonic() + LOAD_S
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=address, headers=headers, trust_env=False) as client:
        while True:
            health = client.get("/health").json()
            if base in health["models"]:
                return
            if why := health.get("unserved", {}).get(base):
                raise ConfigurationError(f"{base} cannot be served: {why}")
            if time.monotonic() > deadline:
                raise DeadlineError(f"{base} was not loaded within {LOAD_S:g} s")
            time.sleep(POLL_S)
