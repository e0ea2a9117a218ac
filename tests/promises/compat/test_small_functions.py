"""The small functions of `art.utils`."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.utils import format_message, get_model_step, limit_concurrency, log_http_errors
from art.utils.benchmark_rollout import benchmark_rollout
from art.utils.get_repo_root_path import get_repo_root_path
from art.utils.get_trajectory_messages import get_trajectory_messages
from art.utils.litellm import convert_litellm_choice_to_openai
from art.utils.network import find_free_tcp_port
from art.utils.output_dirs import (
    get_default_art_path,
    get_model_dir,
    get_models_dir,
    get_output_dir_from_model_properties,
    get_step_checkpoint_dir,
    get_trajectories_dir,
    get_trajectories_split_dir,
)
from art.utils.strip_logprobs import strip_logprobs

CALL = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
LOGPROBS = {"content": [{"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}], "refusal": None}


def choice(**message: Any) -> Choice:
    fields = {"role": "assistant", "content": "a", **message}
    return Choice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": fields, "logprobs": LOGPROBS}
    )


def test_messages_as_text() -> None:
    assert format_message({"role": "user", "content": "hello"}) == "User:\nhello"
    said: Any = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert format_message(said) == 'Assistant:\nfind({"q": "x"})'
    assert format_message(choice(tool_calls=[CALL])) == 'Assistant:\na\nfind({"q": "x"})'
    parts: Any = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "u"}}]
    assert format_message({"role": "user", "content": parts}) == "User:\nlook\n[image_url]"


def test_messages_of_a_trajectory() -> None:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "q"}, choice()])
    assert get_trajectory_messages(trajectory) == trajectory.messages()


class Crowd:
    """Counts how many calls are inside at once."""

    def __init__(self) -> None:
        self.inside, self.most = 0, 0

    async def enter(self, *_: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.inside -= 1


async def test_at_most_so_many_calls_at_once() -> None:
    crowd = Crowd()
    await asyncio.gather(*(limited() for limited in [limit_concurrency(3)(crowd.enter)] * 10))
    assert crowd.most == 3


async def test_a_limit_for_each_key() -> None:
    crowds = {"a": Crowd(), "b": Crowd()}
    both = Crowd()

    @limit_concurrency(2, derive_key=lambda name: name)
    async def enter(name: str) -> None:
        await asyncio.gather(crowds[name].enter(), both.enter())

    await asyncio.gather(*(enter(name) for name in "aaaabbbb"))
    assert (crowds["a"].most, crowds["b"].most, both.most) == (2, 2, 4)


def test_a_limit_outlives_its_event_loop() -> None:
    crowd = Crowd()
    limited = limit_concurrency(1)(crowd.enter)

    async def crowded() -> None:
        await asyncio.gather(*(limited() for _ in range(3)))

    asyncio.run(crowded())
    asyncio.run(crowded())
    assert crowd.most == 1


async def test_a_failed_call_makes_room() -> None:
    @limit_concurrency(1)
    async def fail() -> None:
        raise KeyError("x")

    for _ in range(2):
        with pytest.raises(KeyError):
            await fail()
    with pytest.raises(ValueError, match="at least 1"):
        limit_concurrency(0)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (httpx.Response(404, json={"detail": "no such game"}), "no such game"),
        (httpx.Response(404, text="plain words"), "plain words"),
    ],
)
async def test_http_errors_tell_what_the_server_said(reply: httpx.Response, said: str) -> None:
    @log_http_errors
    async def ask(path: str) -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: reply)) as client:
            (await client.get(f"http://games.test/{path}")).raise_for_status()
        return path

    with pytest.raises(art.errors.ServerError, match=rf"^\[HTTP 404\] http://games.test/x {said}$") as caught:
        await ask("x")
    assert isinstance(caught.value.__cause__, httpx.HTTPStatusError) and caught.value.status == 404


async def test_other_errors_and_values_pass() -> None:
    @log_http_errors
    async def halve(n: int) -> int:
        return 10 // n

    assert await halve(2) == 5
    with pytest.raises(ZeroDivisionError):
        await halve(0)


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert get_repo_root_path() == str(tmp_path)
    assert get_default_art_path() == str(tmp_path / "deep" / ".art")
    root = get_output_dir_from_model_properties("p", "m", "/data")
    assert get_models_dir("p", "/data") == "/data/p/models" and root == "/data/p/models/m"
    assert get_step_checkpoint_dir(root, 7) == "/data/p/models/m/checkpoints/0007"
    assert get_trajectories_split_dir(root, "val") == get_trajectories_dir(root) + "/val"
    model = art.Model(name="m", project="p")
    assert get_model_dir(model, "/data") == root
    assert Path(get_model_dir(model)) == Path(".art/p/models/m")
    model.base_path = "/elsewhere"
    assert get_model_dir(model) == "/elsewhere/p/models/m"


def test_the_newest_step_on_disk(tmp_path: Path) -> None:
    model: Any = art.Model(name="m", project="p")
    assert get_model_step(model, str(tmp_path)) == 0
    assert not list(tmp_path.iterdir()), "looking makes no folders"
    for name in ("0002", "0010", "tmp"):
        (tmp_path / "p" / "models" / "m" / "checkpoints" / name).mkdir(parents=True)
    assert get_model_step(model, str(tmp_path)) == 10


def test_a_free_port_can_be_taken() -> None:
    with socket.create_server(("127.0.0.1", find_free_tcp_port())) as server:
        assert server.getsockname()[1] > 1023


def test_logprobs_are_stripped_from_a_copy() -> None:
    reply = choice()
    kept = {"choices": [reply], "logprobs": [1], "nested": ({"logprobs": 2, "x": 3},)}
    stripped: Any = strip_logprobs(kept)
    assert stripped["choices"][0].logprobs is None and stripped["choices"][0].message == reply.message
    assert "logprobs" not in stripped and stripped["nested"] == ({"x": 3},)
    assert reply.logprobs is not None and kept["logprobs"] == [1], "the original stays"
    trajectory = art.Trajectory(messages_and_choices=[reply])
    bare: Any = strip_logprobs(trajectory).messages_and_choices[0]
    assert bare.logprobs is None


def test_things_that_refer_to_each_other() -> None:
    thing = SimpleNamespace(logprobs=1)
    thing.me = thing
    assert strip_logprobs(thing).logprobs is None and strip_logprobs(thing).me.logprobs is None


class Shared:
    """Its copies are itself, as those of clients are."""

    logprobs = None

    def __init__(self) -> None:
        self.settings = {"logprobs": True}

    def __deepcopy__(self, _: Any) -> Shared:
        return self


def test_what_copies_share_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    shared = Shared()
    assert strip_logprobs([shared, {"logprobs": 1}]) == [shared, {}]
    assert shared.settings == {"logprobs": True}
    locked = {"logprobs": 1, "lock": threading.Lock()}
    assert strip_logprobs(locked) is locked
    assert "cannot be copied and keeps its logprobs" in caplog.text


def test_a_litellm_choice_becomes_ours() -> None:
    from pydantic import BaseModel, ConfigDict

    class Message(BaseModel):
        model_config = ConfigDict(extra="allow")
        role: str = "assistant"
        content: str | None = None
        tool_calls: list[Any] | None = None
        provider_specific_fields: dict[str, Any] | None = {"refusal": None, "reasoning": "hm"}

    their: Any = SimpleNamespace(
        index=0,
        finish_reason="tool_calls",
        message=Message(tool_calls=[CALL]),
        logprobs=SimpleNamespace(model_dump=lambda mode: LOGPROBS),
        model_extra={"matched_stop": 3},
        provider_specific_fields={"art_sample": "s"},
    )
    ours = convert_litellm_choice_to_openai(their)
    assert isinstance(ours, Choice) and ours.finish_reason == "tool_calls"
    assert ours.message.tool_calls is not None and ours.message.tool_calls[0].model_dump() == CALL
    assert ours.message.model_extra == {"reasoning": "hm"} and ours.message.content is None
    assert ours.logprobs is not None and ours.logprobs.model_dump() == LOGPROBS
    assert ours.model_extra == {"art_sample": "s", "matched_stop": 3}
    with pytest.raises(ValueError, match="a piece of a stream"):
        convert_litellm_choice_to_openai(SimpleNamespace(delta=1))
    their.message = Message(role="user")
    with pytest.raises(ValueError, match="'user', not 'assistant'"):
        convert_litellm_choice_to_openai(their)
    their.message = Message(tool_calls=[{**CALL, "type": "custom"}])
    with pytest.raises(ValueError, match="type 'custom'"):
        convert_litellm_choice_to_openai(their)


async def test_the_mean_reward_of_rollouts() -> None:
    model = art.Model(name="m", project="p")
    rewards = iter([1.0, 0.0, 0.5, art.Unscored(reason="no judge")])

    async def rollout(given: art.Model) -> art.Trajectory:
        assert given is model
        return art.Trajectory(reward=next(rewards))

    assert await benchmark_rollout(model, 4, rollout) == 0.5
    with pytest.raises(ValueError, match="no reward"):
        await benchmark_rollout(model, 0, rollout)


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    from art.utils.logging import _C, _ts, dim, err, info, ok, step, warn

    for line in (info, step, ok, warn, err, dim):
        line("words")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and all("words" in line for line in lines)
    assert len({line.split("]")[0] for line in lines}) == 6 and lines[4].startswith(_C.RED)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", _ts())
    styles = "RESET DIM BOLD ITAL GRAY BLUE CYAN GREEN YELLOW RED MAGENTA".split()
    assert len({getattr(_C, style) for style in styles}) == 11
