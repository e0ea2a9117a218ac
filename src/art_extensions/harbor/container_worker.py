"""A sandbox of Harbor's own classes, in the interpreter that has Harbor: a request and a reply a line.

A request has a number, which its reply repeats, and waits for the one before it. {"do": "cancel"} cancels the
request that runs, and has no reply of its own.

It is run by its path and imports nothing of ART. stdout has the replies; what Harbor prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any


class ContainerWorker:
    """One sandbox."""

    def __init__(self, folder: str, kind: str) -> None:
        from harbor.environments.factory import EnvironmentFactory
        from harbor.models.environment_type import EnvironmentType
        from harbor.models.task.task import Task
        from harbor.models.trial.paths import TrialPaths

        task = Task(Path(folder))
        self._records = tempfile.TemporaryDirectory(prefix="art-trial-")
        paths = TrialPaths(trial_dir=Path(self._records.name))
        paths.mkdir()
        given: dict[str, Any] = {
            "environment_dir": task.paths.environment_dir,
            "environment_name": task.paths.task_dir.name.lower(),
            "session_id": f"art-{os.getpid()}-{os.urandom(4).hex()}",
            "trial_paths": paths,
            "task_env_config": task.config.environment,
            "logger": logging.getLogger("harbor"),
        }
        if ":" in kind:
            self._sandbox = EnvironmentFactory.create_environment_from_import_path(kind, **given)
        else:
            self._sandbox = EnvironmentFactory.create_environment(type=EnvironmentType(kind), **given)

    async def start(self) -> dict[str, Any]:
        await self._sandbox.start(force_build=False)
        return {}

    async def run(
        self, command: str, timeout_s: float, variables: dict[str, str], workdir: str | None
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s + 5.0):
                done = await self._sandbox.exec(
                    command, cwd=workdir, env=variables or None, timeout_sec=max(1, round(timeout_s))
                )
        except TimeoutError:
            return {"code": 137, "output": "", "timed_out": True}
        return {
            "code": done.return_code,
            "output": (done.stdout or "") + (done.stderr or ""),
            "timed_out": False,
        }

    async def upload(self, folder: str, target: str) -> dict[str, Any]:
        await self._sandbox.upload_dir(source_dir=folder, target_dir=target)
        return {}

    async def stop(self) -> dict[str, Any]:
        await self._sandbox.stop(delete=True)
        self._records.cleanup()
        return {}


class ContainerRequests:
    """The requests of the program that started this one. replies: where the replies go."""

    def __init__(self, replies: IO[str]) -> None:
        self._replies = replies
        self._worker: ContainerWorker | None = None

    async def serve(self) -> None:
        """Answers until `stop`, or until the program that asked has ended."""
        loop, running = asyncio.get_running_loop(), None
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            asked = json.loads(line)
            if asked["do"] == "cancel":
                if running is not None:
                    running.cancel()
                continue
            if running is not None:
                await asyncio.wait([running])
            running = asyncio.create_task(self._answer(**asked))
            if asked["do"] == "stop":
                await running
                return
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        if self._worker is not None:
            await self._worker.stop()

    async def _answer(self, do: str, number: int, **given: Any) -> None:
        reply: dict[str, Any] = {}
        try:
            if do == "make":
                self._worker = ContainerWorker(**given)
            elif self._worker is not None:
                reply = await getattr(self._worker, do)(**given)
        except asyncio.CancelledError:
            reply = {"error": "cancelled"}
        except Exception as error:  # noqa: BLE001  # Harbor's, or a service's: the other side raises it
            reply = {"error": f"{type(error).__name__}: {error}"}
        self._replies.write(json.dumps({"number": number, **reply}) + "\n")
        self._replies.flush()


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print
    asyncio.run(ContainerRequests(replies).serve())


if __name__ == "__main__":
    main()
