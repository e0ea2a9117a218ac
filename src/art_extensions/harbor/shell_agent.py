"""The agent of the tasks: the model writes a command, sees what it printed, and writes the next.

A reply has one command in a block of Markdown; `submit` alone ends the work:

    I look first.
    ```bash
    ls -la
    ```
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable

from art.environments.adapters.environment import RolloutConversation
from art_extensions.harbor.sandbox import CommandResult, TaskSandbox
from art_extensions.harbor.task_folders import HarborTask

PROMPT = """\
You solve a task in a Linux shell. Write one command in a block:
```bash
ls -la
```
You see what it printed. Commands share files, not variables or folders. When the task is solved, write:
```bash
submit
```"""
SUBMIT = "submit"
NO_COMMAND = "Write one command in a ```bash block, or submit."
_BLOCK = re.compile(r"```(?:bash|sh|shell)?[ \t]*\n(.*?)(?:\n```|```|\Z)", re.S)

ShellAgent = Callable[[RolloutConversation, TaskSandbox, HarborTask], Awaitable[None]]
"""An agent of a program's own: it asks the model by the conversation, and works in the sandbox."""


def command_of(reply: str) -> str | None:
    """Returns the command of a reply: that of its first block; without a block None."""
    found = _BLOCK.search(reply)
    return found[1].strip() or None if found else None


class CommandTurns:
    """The agent above. Its figures are those of one rollout."""

    def __init__(self, *, max_turns: int, command_s: float, shown_chars: int) -> None:
        self._max_turns, self._command_s, self._shown_chars = max_turns, command_s, shown_chars
        self.commands = self.malformed = 0
        self.submitted = False

    async def work(self, conversation: RolloutConversation, sandbox: TaskSandbox, task: HarborTask) -> None:
        """Goes on until the model submits, or has had its turns."""
        ends = time.monotonic() + task.agent_s
        for turn in range(self._max_turns):
            command = command_of(await conversation.ask())
            if command == SUBMIT:
                self.submitted = True
                return
            if command is None:
                self.malformed += 1
                seen = NO_COMMAND
            else:
                self.commands += 1
                left = max(1.0, min(self._command_s, ends - time.monotonic()))
                seen = self._shown(await sandbox.run(command, timeout_s=left), left)
            if turn + 1 < self._max_turns:
                conversation.add({"role": "user", "content": seen})

    def _shown(self, done: CommandResult, deadline_s: float) -> str:
        """Returns what the model sees: the status, and the output, of a long one its two ends."""
        text, most = done.output, self._shown_chars
        if len(text) > most:
            half = most // 2
            text = f"{text[:half]}\n... {len(text) - most} characters ...\n{text[-half:]}"
        status = f"stopped after {deadline_s:g} s" if done.timed_out else f"exit status {done.code}"
        return f"{status}\n{text}".rstrip()
