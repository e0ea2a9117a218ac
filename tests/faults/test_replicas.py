"""Engines that die beside others, and engines that sleep: no request fails, no sample is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_process import ServerProcess, running_server
from test_server_faults import sft_job, submit_sft

from waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.slow

ROLLOUTS, TURNS = 40, 4


def rollout(server: ServerProcess, number: int, done: list[str]) -> list[str]:
    """Several turns of one conversation. Returns its samples."""
    messages, samples = [{"role": "user", "content": f"hello {number}"}], []
    for turn in range(TURNS):
        body = {
            "model": "player",
            "messages": messages,
            "max_tokens": 24,
            "temperature": 1.0,
            # Some are streamed, and have been told a part of their answer when the engine dies.
            "stream": bool(number % 2),
        }
        url = f"/r/rollout-{number}/v1/chat/completions"
        sample, text = _streamed(server, url, body) if number % 2 else _whole(server, url, body)
        samples.append(sample)
        done.append(sample)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"and {turn}?"}]
    return samples


def _whole(server: ServerProcess, url: str, body: dict[str, Any]) -> tuple[str, str]:
    reply = server.http.post(url, json=body)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    return choice["sample_id"], choice["message"]["content"] or ""


def _streamed(server: ServerProcess, url: str, body: dict[str, Any]) -> tuple[str, str]:
    sample, text, ended = "", "", False
    with server.http.stream("POST", url, json=body) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                ended = ended or line == "data: [DONE]"
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                sample = choice.get("sample_id") or sample
                text += choice["delta"].get("content") or ""
    assert ended and sample
    return sample, text


def check_metrics(server: ServerProcess) -> None:
    """What Prometheus is told of two steps on two engines, of which one was killed."""

    def read(name: str, **labels: str) -> list[float]:
        families = text_string_to_metric_families(server.http.get("/metrics").text)
        rows = [row for family in families for row in family.samples if row.name == name]
        return sorted(row.value for row in rows if labels.items() <= row.labels.items())

    engines = {"base_model": str(server.base), "role": "engine"}
    assert read("art_worker_restarts_total", **engines) == [0, 1]
    assert read("art_worker_restarts_total", role="trainer") == [0]
    assert read("art_worker_up", **engines) == [1, 1]
    eventually(lambda: len(read("art_engine_reused_tokens_total")) == 2)
    assert read("art_engine_reused_tokens_total")[1] > 0 and read("art_held_requests") == [0]
    eventually(lambda: read("art_engine_running_requests") == read("art_engine_waiting_requests") == [0, 0])
    assert read("art_promotions_total", model="games/player") == read("art_model_step") == [2]
    assert read("art_jobs", state="done") == [2] and read("art_jobs", state="running") == [0]
    assert read("art_ledger_samples")[0] >= ROLLOUTS * TURNS
    assert read("art_event_loop_lag_seconds_count")[0] > 0


def test_no_request_fails_when_one_of_two_engines_is_killed(tmp_path: Path, base: Path) -> None:
    with running_server(tmp_path / "data", base, replicas=2) as server:
        assert server.train("first")["step"] == 1
        done: list[str] = []
        server.http = httpx.Client(
            base_url=server.http.base_url,
            headers=server.http.headers,
            timeout=DEADLINE_S,
            trust_env=False,
            limits=httpx.Limits(max_connections=ROLLOUTS),
        )
        killed, other = server.engines()
        with ThreadPoolExecutor(ROLLOUTS) as pool:
            running = [pool.submit(rollout, server, number, done) for number in range(ROLLOUTS)]
            eventually(lambda: len(done) >= ROLLOUTS // 2)
            killed.kill()
            samples = [one.result(timeout=DEADLINE_S) for one in running]
        assert sum(map(len, samples)) == ROLLOUTS * TURNS == len({one for taken in samples for one in taken})
        eventually(lambda: server.health()["engine"]["state"] == "up")
        replicas = server.health()["engine"]["replicas"]
        assert sorted(one["restarts"] for one in replicas) == [0, 1] and other in server.engines()
        # The ledger has every sample, and training goes on with all of them, on both engines.
        trajectories = [
            {"rollout": f"rollout-{number}", "reward": float(number % 3 == 0), "samples": taken}
            for number, taken in enumerate(samples)
        ]
        groups = [{"trajectories": trajectories[at : at + 8]} for at in range(0, ROLLOUTS, 8)]
        server.submit({"job_id": "second", "groups": groups, "optimizer": {"learning_rate": 1e-3}})
        result = server.result("second")
        assert result["step"] == 2 and result["sheet"]["started"]["rollouts"] == ROLLOUTS
        assert result["sheet"]["fates"]["trained"]["rollouts"] == ROLLOUTS
        assert {server.choice(temperature=1.0)["step"] for _ in range(4)} == {2}
        check_metrics(server)
        for engine in server.engines():
            engine.kill()  # both: requests wait for the first that is back
        assert server.choice()["step"] == 2


def ask_and_tell(server: ServerProcess, sent: threading.Event) -> httpx.Response:
    """A chat request; `sent` is set when its body has gone out."""
    body = {"model": "player", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}

    def pieces() -> Iterator[bytes]:
        yield json.dumps(body).encode()
        sent.set()

    headers = {"content-type": "application/json"}
    return server.http.post("/v1/chat/completions", content=pieces(), headers=headers, timeout=240)


def asked_in_the_middle(server: ServerProcess, job_id: str, hurt: str | None) -> httpx.Response:
    """A request that comes while a step is trained. The engine is asleep then."""
    submit_sft(server, sft_job(job_id, 120))
    trainer = server.workers()["trainer"]
    eventually(lambda: any(one.get("done", 0) >= 3 for one in server.events(job_id, most=8)))
    trainer.suspend()  # the step is not over before the request is there
    replies: list[httpx.Response] = []
    sent = threading.Event()
    asking = threading.Thread(target=lambda: replies.append(ask_and_tell(server, sent)), daemon=True)
    asking.start()
    assert sent.wait(timeout=240)
    for _ in range(3):
        server.health()  # answered after what came before it
    if hurt is not None:
        server.workers()[hurt].kill()
    if hurt != "trainer":
        trainer.resume()
    asking.join(timeout=240)
    phases = [one.get("phase") for one in server.events(job_id)]
    assert server.result(job_id) and "saving" in phases
    return replies[0]


def test_requests_wait_while_the_engine_sleeps_whatever_dies(tmp_path: Path, base: Path) -> None:
    with running_server(tmp_path / "data", base, sleep_engine="always") as server:
        for step, hurt in enumerate([None, "engine", "trainer"]):
            reply = asked_in_the_middle(server, f"job-{step}", hurt)
            assert reply.status_code == 200, reply.text
            assert reply.json()["choices"][0]["step"] == step, "the step that was newest when it was asked"
            assert server.choice()["step"] == step + 1
        failed = {**server.job("fails"), "algorithm": {"loss": {"name": "guess"}}}
        server.submit(failed)
        assert server.events("fails")[-1]["type"] == "error"
        assert server.choice()["step"] == 3, "awake after a failure, too"
