"""A small real server that speaks the wire's routes, with faults on request.

Run as a program it is a server child.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from art.wire.rollouts import ROLLOUT_HEADER

KEY = "test-key-1234"


@dataclass
class Double:
    """What the server was asked, and what it does wrong."""

    asked: Counter[str] = field(default_factory=Counter)
    rollouts: list[str | None] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    registered: list[dict[str, Any]] = field(default_factory=list)
    events_after: list[int] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """Jobs that run until somebody reads their events."""
    stays_unfinished: bool = False
    """Reading their events does not end them."""
    kept: list[list[int]] = field(default_factory=list)
    """Of each deletion of checkpoints."""
    step: int = 0
    refusals: list[Response] = field(default_factory=list)
    """Answers given instead of the right one, first come first served, to any POST."""
    drop_after: list[int] = field(default_factory=list)
    """Cut an event stream after so many of its events, once for each."""
    lose_replies: int = 0
    """Do the job, but cut the connection instead of replying."""
    script: list[dict[str, Any]] | None = None
    """The job's events; made from the job when None."""
    heartbeats: int = 0
    silence_s: float = 0.0
    delay_s: float = 0.0
    register_s: float = 0.0
    abandoned: int = 0
    """Completions whose client went away."""
    chunked: bool = False

    def app(self) -> Starlette:
        model = "/art/models/{project}/{name}"
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/art/models", self.register, methods=["POST"]),
                Route(model, self.info),
                Route(f"{model}/train", self.train, methods=["POST"]),
                Route(f"{model}/train_sft", self.train, methods=["POST"]),
                Route(f"{model}/delete_checkpoints", self.delete, methods=["POST"]),
                Route(f"{model}/unload_steps", self.unload, methods=["POST"]),
                Route("/art/jobs/{job_id}/events", self.events),
                Route("/art/jobs/{job_id}", self.job),
            ]
        )

    def _refusal(self, request: Request) -> Response | None:
        self.asked[request.url.path] += 1
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return error(401, "a wrong key", "invalid_api_key")
        return self.refusals.pop(0) if self.refusals and request.method == "POST" else None

    key: str = KEY

    async def complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.headers.append(dict(request.headers))
        if (refusal := self._refusal(request)) is not None:
            return refusal
        rollout = request.headers.get(ROLLOUT_HEADER)
        self.rollouts.append(rollout)
        self.bodies.append(body)
        if self.delay_s:
            for _ in range(int(self.delay_s / 0.02)):
                await asyncio.sleep(0.02)
                if await request.is_disconnected():
                    self.abandoned += 1
                    return Response(status_code=499)
        number = len(self.rollouts)
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": f"reply {number} é\U0001f600"},
            "logprobs": None,
            "sample_id": f"s{number}",
            "step": self.step,
        }
        completion = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice],
        }
        if body.get("stream"):
            return StreamingResponse(self._chunks(completion), media_type="text/event-stream")
        completion["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        if self.chunked:

            async def pieces() -> AsyncIterator[bytes]:
                yield json.dumps(completion).encode()

            return StreamingResponse(pieces(), media_type="application/json")
        return JSONResponse(completion)

    async def _chunks(self, completion: dict[str, Any]) -> AsyncIterator[str]:
        """The reply a word at a time, then why it ended, then the usage."""
        (whole,) = completion["choices"]
        head = {**completion, "object": "chat.completion.chunk"}
        deltas = [{"role": "assistant", "content": ""}]
        deltas += [{"content": word} for word in re.findall(r"\S+\s*", whole["message"]["content"])]
        for delta in [*deltas, {}]:
            choice = {"delta": delta, **whole, "finish_reason": None if delta else "stop"}
            del choice["message"]
            yield f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"
            await asyncio.sleep(0.002)
        usage = {"prompt_tokens": 1, "completion_tokens": len(deltas), "total_tokens": 1 + len(deltas)}
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    async def register(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        asked = json.loads(await request.body())
        await asyncio.sleep(self.register_s)
        if asked["name"] == "unfit":
            return error(409, "this model cannot be served", "checkpoint_unfit")
        self.registered.append(asked)
        return self._model(asked["project"], asked["name"])

    async def info(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if not any(known["name"] == request.path_params["name"] for known in self.registered):
            return error(404, f"no model {request.path_params['name']!r}", "model_not_found")
        return self._model(request.path_params["project"], request.path_params["name"])

    def _model(self, project: str, name: str) -> Response:
        known = {"project": project, "name": name, "base_model": "art/nano", "inference_name": name}
        steps = {"step": self.step, "checkpoints": [0, self.step]}
        return JSONResponse({**known, **steps, "unfinished_jobs": list(self.unfinished)})

    async def train(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        job = json.loads(await request.body())
        if job["job_id"] not in self.jobs:
            self.jobs[job["job_id"]] = job
            self.step += 1
        if self.lose_replies:
            self.lose_replies -= 1
            return StreamingResponse(cut(), media_type="application/json")
        return JSONResponse({"job_id": job["job_id"], "state": "running", "model": "m"})

    async def delete(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        kept = json.loads(await request.body())["keep_steps"]
        self.kept.append(kept)
        return JSONResponse({"deleted": [step for step in range(self.step) if step not in kept]})

    async def unload(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        kept = json.loads(await request.body())["keep_steps"]
        return JSONResponse({"unloaded": [step for step in range(self.step) if step not in kept]})

    async def job(self, request: Request) -> Response:
        """A job has ended when its events were read, or nobody ever has to wait for it."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        job_id = request.path_params["job_id"]
        if job_id not in self.jobs:
            return error(404, f"no job {job_id!r}", "job_not_found")
        told = {"job_id": job_id, "model": "m"}
        if job_id in self.unfinished:
            return JSONResponse({**told, "state": "running"})
        last = (self.script or self._script(self.jobs[job_id]))[-1]
        if last["type"] == "error":
            return JSONResponse({**told, "state": "failed", "error": last["error"]})
        return JSONResponse({**told, "state": "done", "result": last["result"]})

    async def events(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        after = int(request.query_params.get("after", 0))
        self.events_after.append(after)
        if (job_id := request.path_params["job_id"]) in self.unfinished and not self.stays_unfinished:
            self.unfinished.remove(job_id)
        script = self.script or self._script(self.jobs[request.path_params["job_id"]])
        return StreamingResponse(self._stream(script, after), media_type="application/x-ndjson")

    async def _stream(self, script: list[dict[str, Any]], after: int) -> AsyncIterator[bytes]:
        drop = self.drop_after.pop(0) if self.drop_after else None
        for _ in range(self.heartbeats):
            yield b"\n"
            await asyncio.sleep(0.05)
        if self.silence_s:
            yield b""
            await asyncio.sleep(self.silence_s)
        for sent, event in enumerate(event for event in script if event["number"] > after):
            if sent == drop:
                raise ConnectionResetError("cut on request")
            yield json.dumps(event).encode() + b"\n"

    def _script(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        groups = job.get("groups", [])
        rollouts = sum(len(group["trajectories"]) + group["failed"] for group in groups)
        rollouts += sum(map(len, job.get("batches", [])))
        failed = sum(group["failed"] for group in groups)
        fates = {"trained": {"rollouts": rollouts - failed, "tokens": 7}}
        if failed:
            fates["failed"] = {"rollouts": failed, "tokens": 0}
        sheet = {"started": {"rollouts": rollouts, "tokens": 7}, "fates": fates, "forks": {"template": 2}}
        result = {"step": self.step, "metrics": {"loss/train": 0.5}, "sheet": sheet, "checkpoint_path": "/c"}
        return [
            {"number": 1, "type": "state", "phase": "queued"},
            {"number": 2, "type": "progress", "phase": "training", "done": 5, "total": 10},
            {"number": 3, "type": "progress", "phase": "training", "done": 10, "total": 10},
            {"number": 4, "type": "result", "result": result},
        ]


async def cut() -> AsyncIterator[bytes]:
    """A reply that breaks off."""
    yield b"{"
    raise ConnectionResetError("cut on request")


def error(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> Response:
    """An error in OpenAI's shape."""
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": body}, status_code=status, headers=headers)


def main() -> None:
    """A server child: settings on standard input, a ready line on standard output, ends with its input."""
    told = json.loads(sys.stdin.readline())
    options = told.get("engine", {})
    if "error" in options:
        print(
            json.dumps({"ready": False, "error": options["error"], "kind": options.get("kind")}), flush=True
        )
        sys.exit(3)
    if options.get("die"):
        print("the last words", file=sys.stderr, flush=True)
        sys.exit(5)
    if options.get("hang"):
        threading.Event().wait(600)
    if options.get("freeze"):
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(options.get("start_s", 0.0))
    double = Double(key=told["key"], register_s=options.get("register_s", 0.0))
    config = uvicorn.Config(double.app(), port=told["port"], log_level="critical", lifespan="off")
    server = uvicorn.Server(config)

    def watch_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    async def serve() -> None:
        task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        print(json.dumps({"ready": True, "port": port, "version": "double"}), flush=True)
        threading.Thread(target=watch_parent, daemon=True).start()
        await task

    asyncio.run(serve())


if __name__ == "__main__":
    main()
