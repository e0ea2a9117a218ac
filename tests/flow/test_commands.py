"""The other verbs: version, help, doctor, serve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from art import LocalBackend, TrainableModel
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_starts")]

ART = str(Path(sys.executable).with_name("art"))


def art(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ART, *arguments], cwd=cwd, capture_output=True, text=True, timeout=240)


def test_version() -> None:
    done = art("--version")
    assert done.returncode == 0 and done.stdout.startswith("art ")


@pytest.mark.parametrize("verb", ["quickstart", "serve", "doctor"])
def test_every_verb_explains_itself(verb: str) -> None:
    assert verb in art("--help").stdout
    done = art(verb, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout


def test_doctor_completes_a_miniature_step(tmp_path: Path) -> None:
    done = art("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for station in ("python", "torch", "memory", "generate", "train", "generate again", "Ready to train"):
        assert station in done.stdout, station
    assert list(tmp_path.iterdir()) == [], "the doctor leaves nothing behind"


def test_serve_answers_only_with_its_key_and_stops_cleanly(tmp_path: Path) -> None:
    key = "a-key-for-this-test"
    environment = {**os.environ, "ART_API_KEY": key}
    server = subprocess.Popen(
        [ART, "serve", "--port", "0", "--data-dir", "data"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert key not in line
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:")).rstrip(".,")
        request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=240) as reply:
            assert json.load(reply)["object"] == "list"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/v1/models", timeout=240)
        assert refused.value.code == 401
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=240) == 0
    finally:
        server.kill()
        server.communicate()


async def test_serve_answers_with_what_was_trained_before(tmp_path: Path) -> None:
    model = TrainableModel(name="player", project="flow", base_model="art/nano")
    async with LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
    environment = {**os.environ, "ART_API_KEY": "a-key-for-this-test"}
    server = subprocess.Popen(  # noqa: ASYNC220 - starting is instant; nothing else runs here
        [ART, "serve", "--port", "0", "--data-dir", str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[2]
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="a-key-for-this-test")

        async def is_served() -> bool:
            return "player" in [row.id async for row in client.models.list()]

        await until(is_served)
        asked = [{"role": "user", "content": "yes, no or maybe?"}]
        for name in ("player", "player@0", "art/nano", "art/nano-games"):
            reply = await client.chat.completions.create(model=name, messages=asked, max_tokens=2)
            assert reply.choices[0].model_extra["step"] == (0 if "player" in name else None)
    finally:
        server.terminate()
        assert server.wait(timeout=240) == 0
