"""Resource servers of the real NeMo-Gym, in an interpreter of their own.

The package has rollouts that it recorded itself. A model that says the same again gets the same results of
its calls and the same reward.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError
from art.wire.rollouts import SAMPLE_FIELD
from art_extensions.testing import LlmServer, ToolCalls

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-nemo-gym" / "bin" / "python"
missing = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")
needs_package = pytest.mark.skipif(missing, reason="no .venv-nemo-gym: `make .venv-nemo-gym/.installed`")
pytestmark = pytest.mark.slow
Row = dict[str, Any]


def player(server: LlmServer) -> art.Model[Any, Any]:
    return art.Model(
        name="player",
        project="nemo-gym",
        inference_model_name="player",
        inference_base_url=server.base_url,
        inference_api_key=server.key,
    )


def question(messages: list[Any]) -> str:
    """Returns the first message of the user as text, with the addresses of its images."""
    content = next(one["content"] for one in messages if one["role"] == "user")
    if isinstance(content, str):
        return content
    images = [part.get("image_url") for part in content]
    return "\n".join(
        str(part["text"] if image is None else image["url"] if isinstance(image, dict) else image)
        for part, image in zip(content, images, strict=True)
    )


class Recorded:
    """The rollouts that the package recorded with a server: what the model said, and what it was told."""

    def __init__(self, name: str) -> None:
        folder = next(PYTHON.parents[1].glob(f"lib/python3*/site-packages/resources_servers/{name}"))
        lines = (folder / "data" / "example_rollouts.jsonl").read_text(encoding="utf-8").splitlines()
        self.rows = {question(row["responses_create_params"]["input"]): row for row in map(json.loads, lines)}
        assert len(self.rows) == len(lines) == 5

    def replies(self, asked: str) -> list[Any]:
        """Returns the replies of the model, each a text or calls."""
        replies: list[Any] = [[]]
        for item in self.rows[asked]["response"]["output"]:
            if item["type"] in ("function_call", "message") and item.get("role") != "user":
                replies[-1].append(item)
            elif replies[-1]:
                replies.append([])
        return [self._reply(items) for items in replies if items]

    def _reply(self, items: list[Row]) -> Any:
        calls = [(one["name"], one["arguments"]) for one in items if one["type"] == "function_call"]
        return ToolCalls(calls) if calls else items[-1]["content"][0]["text"]

    def results(self, asked: str) -> list[Any]:
        """Returns what its calls gave."""
        return [
            json.loads(one["output"])
            for one in self.rows[asked]["response"]["output"]
            if one["type"] == "function_call_output"
        ]

    def answer(self, body: Mapping[str, Any]) -> Any:
        asked = question(body["messages"])
        given = self.rows[asked]["responses_create_params"]["input"]
        said = sum(one["role"] == "assistant" for one in body["messages"])
        return self.replies(asked)[said - sum(one.get("role") == "assistant" for one in given)]


async def play_all(name: str, server: LlmServer) -> list[art.Trajectory]:
    environment = find_environment(f"nemo-gym:{name}", python=str(PYTHON), deadline_s=120.0)
    try:
        scenarios = [*environment.scenarios("train"), *environment.scenarios("val")]
        return list(await asyncio.gather(*(environment.rollout(player(server), one) for one in scenarios)))
    finally:
        await environment.close()


@contextmanager
def own_server() -> Iterator[str]:
    """Gives the address of a server of the package's Gymnasium kind that is no part of the package."""
    program = str(ROOT / "tests" / "contracts" / "faulty" / "faulty_server.py")
    command = [str(PYTHON), "-P", "-W", "ignore", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@needs_package
def test_each_reply_earns_the_reward_of_its_step() -> None:
    """A model of our server plays the package's own server of the Gymnasium kind."""
    row = {
        "responses_create_params": {"input": "respond with yes, yes or yes"},
        "follow_ups": ["respond with no, no or no", "respond with maybe, maybe or maybe"],
        "expected_answer": "e",
    }

    named = {
        "responses_create_params": {"input": "respond with no, no or no"},
        "fault": "",
        "info": {"state": "hall", "reason": "It answered.", "turns": 3},
    }

    async def play() -> tuple[list[tuple[str, art.Trajectory]], art.Trajectory]:
        model = art.TrainableModel(name="turns", project="nemo-gym", base_model="art/nano-words")
        environment = find_environment(
            "nemo-gym:example_multi_turn_gymnasium",
            python=str(PYTHON),
            data=[row, {**row, "expected_answer": "no such word"}],
            val_data=[{**row, "follow_ups": []}],
            turn_rewards=True,
            deadline_s=120.0,
        )
        scenarios = [*environment.scenarios("train"), *environment.scenarios("val")]
        with tempfile.TemporaryDirectory() as folder:
            async with art.LocalBackend(path=folder) as backend:
                await model.register(backend)
                played = [await environment.rollout(model, one, max_tokens=4) for one in scenarios]
                with own_server() as address:
                    own = find_environment(
                        f"nemo-gym:{address}",
                        data=[named],
                        val_data=[{**named, "held": 1}],
                        turn_rewards=True,
                    )
                    informed = await own.rollout(model, own.scenarios("train")[0], max_tokens=4)
                    await own.close()
        await environment.close()
        expected = [one.data["row"]["expected_answer"] for one in scenarios]
        return list(zip(expected, played, strict=True)), informed

    found, informed = asyncio.run(play())
    assert [*informed.turn_rewards.values()] == [1.0] and [*informed.turn_states.values()] == ["hall"]
    assert [*informed.turn_reasons.values()] == ["It answered."]
    lengths = []
    for expected, one in found:
        turns = [choice for choice in one.messages_and_choices if not isinstance(choice, dict)]
        lengths.append(len(turns))
        reward = float(expected in str(turns[-1].message.content).lower())
        earned = [0.0] * (len(turns) - 1) + [reward]
        assert one.reward == reward
        assert one.turn_rewards == {
            getattr(turn, SAMPLE_FIELD): part for turn, part in zip(turns, earned, strict=True)
        }
    assert sorted(lengths) == [1, 3, 3]


@needs_package
@pytest.mark.parametrize(
    "name",
    [
        "example_session_state_mgmt",  # tools with a state
        "calendar",  # a text, right or wrong
        "xlam_fc",  # calls that nobody runs, right or wrong
        "example_multi_turn_gymnasium",  # of the Gymnasium kind
        "circle_count",  # a picture to look at
    ],
)
def test_what_the_package_recorded_has_the_same_results_and_rewards_here(name: str) -> None:
    recorded = Recorded(name)
    with LlmServer(recorded.answer) as server:
        played = asyncio.run(play_all(name, server))
    found = {question(one.messages()): one for one in played}
    assert {*found} == {*recorded.rows}
    for asked, one in found.items():
        assert one.reward == recorded.rows[asked]["reward"], asked
        assert one.metrics["turns"] == len(recorded.replies(asked)) and one.metrics["truncated"] == 0
        told = [json.loads(message["content"]) for message in one.messages() if message["role"] == "tool"]
        assert told == recorded.results(asked)


@needs_package
def test_a_wrong_answer_an_unknown_tool_and_a_dead_server_are_no_errors() -> None:
    """The reward of a model that does not add is 0; a server that died starts again."""

    def answer(body: Mapping[str, Any]) -> Any:
        if body["messages"][-1]["role"] == "user":
            return ToolCalls([("verify", "{}"), ("increment_counter", "[")])
        return "done"

    async def play(server: LlmServer) -> tuple[art.Trajectory, art.Trajectory]:
        environment: Any = find_environment(
            "nemo-gym:example_session_state_mgmt", python=str(PYTHON), train=2, val=1, deadline_s=120.0
        )
        one, two = environment.scenarios("train")
        try:
            first = await environment.rollout(player(server), one)
            environment._server._process.kill()
            environment._server._process.wait()
            return first, await environment.rollout(player(server), two)
        finally:
            await environment.close()

    with LlmServer(answer) as server:
        first, second = asyncio.run(play(server))
    assert (first.reward, second.reward) == (0, 0)
    told = [str(one["content"]) for one in first.messages() if one["role"] == "tool"]
    assert told[0] == '{"detail":"Not Found"}' and told[1].startswith(
        '{"error": "Invalid tool call arguments'
    )
    tool, *_ = first.tools or ()
    assert tool["function"]["name"] == "increment_counter"


@needs_package
def test_an_unknown_server_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean 'blackjack'.*known: aalcr, .*workplace"):
        find_environment("nemo-gym:blackjak", python=str(PYTHON))


def test_a_missing_interpreter_or_package_says_what_to_install() -> None:
    with pytest.raises(ConfigurationError, match=r"no interpreter is named\. NeMo-Gym needs Python 3\.12"):
        find_environment("nemo-gym:mcqa")
    with pytest.raises(ConfigurationError, match=r"'nowhere/python' is no file"):
        find_environment("nemo-gym:mcqa", python="nowhere/python")
    with pytest.raises(ConfigurationError, match=r"the package nemo-gym is not installed\. NeMo-Gym needs"):
        find_environment("nemo-gym:mcqa", python=str(ROOT / ".venv" / "bin" / "python"))


ROWS = [
    {"responses_create_params": {"input": f"Say {verdict}", "instructions": "Be short."}, "verdict": verdict}
    for verdict in ("nan", "text", "none", "refused", "hangs", "list", "half")
]
IMAGE = "data:image/png;base64,aGVsbG8="
SHOWN = [
    {"type": "input_text", "text": "What is this?"},
    {"type": "input_image", "image_url": IMAGE, "detail": "low"},
]
SEEN = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
]
CLICK = {"type": "function", "name": "click", "parameters": {"type": "object", "properties": {}}}
SAID = {"nan": "NaN", "text": '"1.0"', "none": "null", "half": "0.5"}


class Verifier(BaseHTTPRequestHandler):
    """A resource server whose verdict is what the row says."""

    released = threading.Event()

    def do_GET(self) -> None:
        self._send(200, '{"paths": {"/seed_session": {}, "/verify": {}}}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/seed_session":
            return self._send(200, "{}")
        (part,) = body["response"]["output"][0]["content"]
        assert part["text"] == "no"
        verdict = body["verdict"]
        if verdict == "refused":
            return self._send(500, "no verdict")
        if verdict == "hangs":
            self.released.wait(30)
        reward = SAID.get(verdict, "0")
        return self._send(200, "[]" if verdict == "list" else f'{{"reward": {reward}, "exact": true}}')

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""


class Gallery(Verifier):
    """A resource server of the Gymnasium kind that shows a picture at first, and one that a call gave."""

    def do_GET(self) -> None:
        self._send(200, '{"paths": {"/reset": {}, "/step": {}}}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/reset":
            return self._send(200, json.dumps({"observation": SHOWN, "info": {}}))
        response = body["response"]
        call = response["output"][-1].get("call_id")
        outputs = [{"call_id": call, "output": SHOWN}] if call else []
        asked = body["responses_create_params"]
        reward = float(response["tool_choice"] == asked.get("tool_choice", "auto"))
        assert response["parallel_tool_calls"] == asked.get("parallel_tool_calls", True)
        ended = {"reward": reward, "terminated": not call, "info": {"tool_outputs": outputs}}
        return self._send(200, json.dumps(ended))


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Gives the address of a server, which runs inside the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Verifier.released.set()
    server.shutdown()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(Verifier) as found:
        yield found


@pytest.mark.parametrize(
    ("verdict", "error", "words"),
    [
        ("nan", EnvironmentFailedError, r"its reward is nan, no number"),
        ("text", EnvironmentFailedError, r"its reward is '1\.0', no number"),
        ("none", EnvironmentFailedError, r"its reward is None, no number"),
        ("refused", EnvironmentFailedError, r"/verify failed with status 500: no verdict"),
        ("hangs", EnvironmentTimeoutError, r"/verify did not answer within 2 s"),
        ("list", EnvironmentFailedError, r"/verify failed: its answer is no object"),
    ],
)
def test_a_verdict_that_is_none_fails_the_rollout_with_its_reason(
    address: str, verdict: str, error: type[Exception], words: str
) -> None:
    rows = [row for row in ROWS if row["verdict"] == verdict]
    deadline = 2.0 if verdict == "hangs" else 60.0
    environment = find_environment(f"nemo-gym:{address}", data=rows, val_data=ROWS[-1:], deadline_s=deadline)
    with LlmServer(lambda body: "no") as server, pytest.raises(error, match=words):
        asyncio.run(environment.rollout(player(server), environment.scenarios("train")[0]))


def test_a_server_by_its_address_gives_reward_and_metrics(address: str) -> None:
    environment = find_environment(f"nemo-gym:{address}", data=ROWS[:1], val_data=ROWS[-1:])
    with LlmServer(lambda body: "no") as server:
        one = asyncio.run(environment.rollout(player(server), environment.scenarios("val")[0]))
    assert one.reward == 0.5 and one.metrics == {"exact": 1, "turns": 1, "truncated": 0}
    said = [(message["role"], message["content"]) for message in one.messages()]
    assert said == [("system", "Be short."), ("user", "Say half"), ("assistant", "no")]
    with pytest.raises(ConfigurationError, match="needs data=FILE, and takes neither python nor settings"):
        find_environment(f"nemo-gym:{address}", data=ROWS, python="python3")
    with pytest.raises(ConfigurationError, match="each needs 'responses_create_params'"):
        find_environment(f"nemo-gym:{address}", data=[{"prompt": "hello"}])
    with pytest.raises(ConfigurationError, match="max_turns=0"):
        find_environment(f"nemo-gym:{address}", data=ROWS, max_turns=0)


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        ("required", "required"),
        ({"type": "function", "name": "click"}, {"type": "function", "function": {"name": "click"}}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "click"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "click"}}],
                },
            },
        ),
    ],
)
def test_images_of_observations_are_shown_and_the_choice_of_tools_is_the_rows(
    choice: Any, asked: Any
) -> None:
    """The model is sent the images of an observation and of a call's result, and is asked as the row says;
    the server is told the same choice.
    """
    bodies: list[Mapping[str, Any]] = []

    def answer(body: Mapping[str, Any]) -> Any:
        bodies.append(body)
        return "a door" if body["messages"][-1]["role"] == "tool" else ToolCalls([("click", "{}")])

    row = {
        "responses_create_params": {
            "input": [{"role": "user", "content": SHOWN}],
            "tools": [CLICK],
            "tool_choice": choice,
        }
    }
    with serving(Gallery) as found, LlmServer(answer) as server:
        environment = find_environment(f"nemo-gym:{found}", data=[row], val_data=[{**row, "other": 1}])
        one = asyncio.run(environment.rollout(player(server), environment.scenarios("train")[0]))
    assert one.reward == 2 and one.metrics == {"turns": 2, "truncated": 0}
    assert [body["tool_choice"] for body in bodies] == [asked, asked]
    said = [(message["role"], message["content"]) for message in bodies[1]["messages"]]
    assert said[:2] == [("user", SEEN), ("user", SEEN)] and said[3] == ("tool", SEEN)
    assert one.messages()[3]["content"] == SEEN


def test_a_row_without_tools_asks_for_no_choice_and_an_option_goes_before_the_rows() -> None:
    bodies: list[Mapping[str, Any]] = []

    def answer(body: Mapping[str, Any]) -> str:
        bodies.append(body)
        return "a door"

    async def play(found: str, server: LlmServer, row: Row, **options: Any) -> None:
        environment = find_environment(f"nemo-gym:{found}", data=[row], val_data=[{**row, "o": 1}], **options)
        await environment.rollout(player(server), environment.scenarios("train")[0])
        await environment.close()

    request = {"input": "Look.", "tool_choice": "required"}
    with serving(Gallery) as found, LlmServer(answer) as server:
        asyncio.run(play(found, server, {"responses_create_params": request}))
        with_tool = {"responses_create_params": {**request, "tools": [CLICK]}}
        asyncio.run(play(found, server, with_tool, request={"tool_choice": "none"}))
    assert [body.get("tool_choice") for body in bodies] == [None, "none"]


class RefusedFieldError(ValueError):
    """An endpoint's refusal of a field."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.param = field


class Counter(Verifier):
    """A resource server with a tool, whose reward is the number of the calls that it has run."""

    calls = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).calls += self.path == "/click"
        self._send(200, f'{{"reward": {self.calls}}}')


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("handler", [Counter, Gallery])
def test_a_row_without_parallel_calls_has_one_call_run_at_a_time(
    handler: type[BaseHTTPRequestHandler], refuses: bool
) -> None:
    """The endpoint is asked for it. The second call of one that refuses to, or that writes two all the same,
    is not run, and the model is told so.
    """
    bodies: list[Mapping[str, Any]] = []
    Counter.calls = 0

    def answer(body: Mapping[str, Any]) -> Any:
        bodies.append(body)
        if refuses and "parallel_tool_calls" in body:
            raise RefusedFieldError("parallel_tool_calls")
        told = body["messages"][-1]["role"] == "tool"
        return "a door" if told else ToolCalls([("click", "{}"), ("click", '{"again": true}')])

    async def play(found: str, server: LlmServer) -> list[art.Trajectory]:
        environment = find_environment(f"nemo-gym:{found}", data=[row], val_data=[{**row, "other": 1}])
        scenarios = [*environment.scenarios("train"), *environment.scenarios("val")]
        made = [await environment.rollout(player(server), one) for one in scenarios]
        await environment.close()
        return made

    asked = {"input": "Look.", "tools": [CLICK], "parallel_tool_calls": False}
    row: Row = {"responses_create_params": asked}
    with serving(handler) as found, LlmServer(answer) as server:
        first, second = asyncio.run(play(found, server))
    sent = [body.get("parallel_tool_calls") for body in bodies]
    assert sent == ([False, None, None, None, None] if refuses else [False] * 4), (
        "refused once for all rollouts"
    )
    for one in (first, second):
        told = [str(message["content"]) for message in one.messages() if message["role"] == "tool"]
        assert len(told) == 2 and sum("one call at a time" in text for text in told) == 1
    if handler is Counter:
        assert (first.reward, second.reward, Counter.calls) == (1, 2, 2)


def test_another_refusal_of_the_endpoint_fails_the_rollout() -> None:
    def answer(body: Mapping[str, Any]) -> str:
        raise RefusedFieldError("messages")

    row: Row = {"responses_create_params": {"input": "Look.", "tools": [CLICK], "parallel_tool_calls": False}}
    with serving(Gallery) as found, LlmServer(answer) as server:
        environment = find_environment(f"nemo-gym:{found}", data=[row], val_data=[{**row, "other": 1}])
        with pytest.raises(openai.BadRequestError, match="RefusedFieldError: messages"):
            asyncio.run(environment.rollout(player(server), environment.scenarios("train")[0]))
