"""mini-swe-agent in the interpreter that has it: its own loop, prompts and client of models.

It is run by its path and imports nothing of ART. A line of stdin begins an agent, in a thread of its own: the
import of the client takes seconds, and rollouts share it. A line of stdout asks for a command in the sandbox
of an agent, or says how it ended. What the libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Ask = Callable[[dict[str, Any]], dict[str, Any]]


def run_agent(asked: dict[str, Any], ask: Ask) -> dict[str, Any]:
    """Returns how the agent ended, and its figures. ask: gives the result of a command. Raises what the
    package's classes raise for settings.
    """
    from minisweagent.agents import get_agent
    from minisweagent.config import get_config_from_spec
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models import get_model, litellm_model
    from minisweagent.utils.serialize import recursive_merge

    class SandboxEnvironment(LocalEnvironment):  # type: ignore[misc]
        """The package's environment, whose commands run in the sandbox of the task."""

        count = 0

        def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> Any:
            self.count += 1
            command, seconds = action.get("command", ""), timeout or self.config.timeout
            sent = {"command": command, "timeout_s": seconds, "variables": self.config.env}
            done = ask({**sent, "workdir": cwd or self.config.cwd or None})
            output = {"output": done["output"], "returncode": done["code"], "exception_info": ""}
            if done["timed_out"]:  # in the words of `LocalEnvironment`
                said = f"Command {command!r} timed out after {seconds} seconds"
                output["exception_info"] = f"An error occurred while executing the command: {said}"
                output["returncode"] = -1
            self._check_finished(output)
            return output

    config = recursive_merge(*(get_config_from_spec(one) for one in asked["config"]), asked["settings"])
    model = get_model(config=config["model"])
    # A prompt that is longer than the context is refused each time.
    model.abort_exceptions = [*model.abort_exceptions, litellm_model.litellm.BadRequestError]
    environment = SandboxEnvironment(**config.get("environment", {}))
    agent = get_agent(model, environment, config["agent"], default_type="default")
    problem = ""
    try:
        agent.run(asked["task"])
    except Exception as error:  # noqa: BLE001  # the agent has noted it, and its work is tested
        problem = f"{type(error).__name__}: {error}"
    extras = [message.get("extra", {}) for message in agent.messages]
    return {
        "commands": environment.count,
        "malformed": sum(extra.get("interrupt_type") == "FormatError" for extra in extras),
        "status": extras[-1].get("exit_status", "") if extras else "",
        "problem": problem,
    }


class Agents:
    """The agents that run, by the numbers that the other side gave them."""

    def __init__(self) -> None:
        self._replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._results: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}

    def _send(self, number: int, value: dict[str, Any]) -> None:
        with self._lock:
            self._replies.write(json.dumps({"number": number, **value}) + "\n")
            self._replies.flush()

    def _run(self, number: int, asked: dict[str, Any]) -> None:
        def ask(command: dict[str, Any]) -> dict[str, Any]:
            self._send(number, command)
            done = self._results[number].get()
            if "stop" in done:
                raise SystemExit  # of this thread
            return done

        try:
            end = run_agent(asked, ask)
        except Exception as error:  # noqa: BLE001  # of the settings or the package: the other side raises it
            end = {"error": f"{type(error).__name__}: {error}"}
        self._send(number, {"end": end})

    def serve(self) -> None:
        """Begins agents, and passes results on, until the other side has ended."""
        while line := sys.stdin.readline():
            heard = json.loads(line)
            number = heard.pop("number")
            if "task" in heard:
                self._results[number] = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(number, heard), daemon=True).start()
            else:
                self._results[number].put(heard)


def main() -> None:
    agents = Agents()
    with suppress(ImportError):  # each agent raises it
        import minisweagent.models.litellm_textbased_model  # noqa: F401  # once, and not in threads
    agents.serve()
    os._exit(0)  # agents that wait for their model do not delay the end


if __name__ == "__main__":
    main()
