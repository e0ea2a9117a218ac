"""A program for the interpreter of SkyPilot's environment: one request on standard input, lines as answer.

    standard input     {"operation": "launch", "cluster": "art", "task": {...}, "secrets": {...}, ...}
    standard output    {"log": "a line of SkyPilot"} ...  then {"result": ...} or {"error": ..., "kind": ...}

It imports nothing of ART. Secrets come on standard input alone and go into the task by `update_secrets`.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

Log = Callable[[str], None]
AFTER_SERVER_MINUTES = 1
"""Minutes from the end of the server, which has waited for clients, to the end of the box."""
LAST_LOG_LINES = 40


class CloudProvider(Protocol):
    """The machines behind SkyPilot's task."""

    def status(self, cluster: str) -> dict[str, Any]: ...

    def launch(self, task: Any, request: Mapping[str, Any], log: Log) -> dict[str, Any]: ...

    def job(self, cluster: str, log: Log) -> str | None: ...

    def cancel(self, cluster: str) -> None: ...

    def down(self, cluster: str) -> None: ...


class RefusedTaskError(Exception):
    """SkyPilot's own message about a task that it does not take."""


def parse_task(request: Mapping[str, Any]) -> Any:
    """Returns a `sky.Task` with its secrets. Raises RefusedTaskError, with SkyPilot's message."""
    import sky

    try:
        task = sky.Task.from_yaml_config(dict(request["task"]))
        secrets = dict(request.get("secrets") or {})
        if request.get("env_file"):
            from dotenv import dotenv_values

            found = dotenv_values(request["env_file"], interpolate=False)
            secrets = {**{name: value for name, value in found.items() if value is not None}, **secrets}
        task.update_secrets(secrets)
    except (ValueError, TypeError, AssertionError, sky.exceptions.InvalidSkyPilotConfigError) as error:
        raise RefusedTaskError(str(error)) from error
    return task


def masked_yaml(request: Mapping[str, Any], task: Any) -> str:
    """Returns the text of the task as a person reads it: every secret by its name alone."""
    import yaml

    class BlockDumper(yaml.SafeDumper):  # type: ignore[misc]  # of the other environment
        """Writes texts of several lines as blocks."""

    def write_text(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    BlockDumper.add_representer(str, write_text)
    shown = {**request["task"], "secrets": dict.fromkeys(sorted(task.secrets), "<secret>")}
    return str(yaml.dump(shown, Dumper=BlockDumper, sort_keys=False, width=110))


class SkyProvider:
    """SkyPilot's own API."""

    def status(self, cluster: str) -> dict[str, Any]:
        """Returns `UP`, `INIT`, `STOPPED`, or None where there is no such cluster.

        Writes the cluster's entry of ~/.ssh/config, as the command `sky status` does.
        """
        import sky
        from sky.client.cli import command

        found = command._get_cluster_records_and_set_ssh_config([cluster], sky.StatusRefreshMode.AUTO)
        return {"status": str(found[0]["status"].value) if found else None, "ssh_config": None}

    def launch(self, task: Any, request: Mapping[str, Any], log: Log) -> dict[str, Any]:
        """Starts the machines and the job, and returns once the job is accepted."""
        import sky
        from sky.skylet import autostop_lib

        idle = AFTER_SERVER_MINUTES if request["autodown"] else None
        started = sky.launch(
            task,
            cluster_name=request["cluster"],
            idle_minutes_to_autostop=idle,
            wait_for=autostop_lib.AutostopWaitFor.JOBS if idle is not None else None,
            down=idle is not None,
        )
        sky.stream_and_get(started, output_stream=LogStream(log))
        return {"ssh_config": self.status(request["cluster"])["ssh_config"]}

    def job(self, cluster: str, log: Log) -> str | None:
        """Returns the state of the newest job; the log gets its last lines where it has failed."""
        import sky

        states = sky.get(sky.job_status(cluster))
        number, state = next(iter(states.items()), (None, None))
        if state is None:
            return None
        if str(state.value).startswith("FAILED"):
            sky.tail_logs(cluster, number, follow=False, tail=LAST_LOG_LINES, output_stream=LogStream(log))
        return str(state.value)

    def cancel(self, cluster: str) -> None:
        """Ends all jobs of a cluster."""
        import sky

        sky.get(sky.cancel(cluster, all=True))

    def down(self, cluster: str) -> None:
        """Ends the machines and removes their disks."""
        import sky

        sky.get(sky.down(cluster))


class LogStream(io.TextIOBase):
    """A text stream whose lines go to a log."""

    def __init__(self, log: Log) -> None:
        self._log, self._rest = log, ""

    def write(self, text: str) -> int:
        """Passes on the complete lines."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._log(line)
        return len(text)


def answer(request: Mapping[str, Any], provider: CloudProvider, log: Log) -> Any:
    """Does what a request names. Raises RefusedTaskError, and what SkyPilot raises."""
    operation, cluster = request["operation"], request["cluster"]
    if operation == "check":
        return {"yaml": masked_yaml(request, parse_task(request))}
    if operation == "launch":
        return provider.launch(parse_task(request), request, log)
    if operation == "status":
        return provider.status(cluster)
    if operation == "job":
        return {"job": provider.job(cluster, log)}
    if operation == "cancel":
        return provider.cancel(cluster)
    if operation == "down":
        return provider.down(cluster)
    raise ValueError(f"operation {operation!r} is unknown")


def run_once(provider: CloudProvider) -> int:
    """Answers one request. Returns the exit code."""
    os.umask(0o077)  # what SkyPilot writes down is for nobody else
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer

    def send(**reply: Any) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    try:
        request = json.loads(sys.stdin.readline())
        send(result=answer(request, provider, lambda line: send(log=line)))
    except RefusedTaskError as error:
        send(error=str(error), kind="refused")
        return 1
    except Exception as error:  # noqa: BLE001  # whatever SkyPilot raises is told to whoever asked
        send(error=f"{type(error).__name__}: {error}", kind="failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_once(SkyProvider()))
