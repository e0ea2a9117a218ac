"""The sandbox of the rules: where a model's texts are checked, under limits. An extension gives it.

    sandbox: Sandbox = load_extension(SANDBOX, "processes")(
        check, limits, at_once=at_once, name=name, isolation=isolation
    )

check: "regex", "json_schema" or "math". limits: of one check. at_once: how many checks run side by side;
None: one on each core. name: of whoever asks, for messages. Nothing is started before the first check.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

from art.errors import ConfigurationError

IsolationLevel = Literal["best", "required"]
"""What to do where the machine isolates less than it could: run with a warning, or refuse."""
MB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Hard limits. Those of CPU time, memory and files hold for each process; so memory in all is at most
    `processes` x `memory_bytes` + `disk_bytes`.
    """

    wall_s: float = 20.0
    """Then everything is killed. Well above `cpu_s`: on a busy machine a process waits its turn."""
    cpu_s: int = 5
    memory_bytes: int = 512 * MB
    """The limit in bytes of a process's address space, which counts more than what is in use."""
    processes: int = 16
    """The limit on the number of processes, threads included."""
    disk_bytes: int = 64 * MB
    """All files together; only `file_bytes` holds where there are no namespaces."""
    file_bytes: int = 16 * MB
    open_files: int = 64
    output_bytes: int = MB
    """The limit in bytes of what is written to stdout, and of what is kept of stderr."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ConfigurationError(
                    f"Limits({field.name}={getattr(self, field.name)!r}): must be above 0"
                )


class Sandbox(Protocol):
    """A place for one kind of check."""

    async def ask(self, answer: str, expected: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the result of one check: `value` and `why`; or `unusable`, why nothing can be compared with
        `expected`; or `fate`, how the check ended without a result ("deadline", "cpu", "memory", "died").

        Raises: VerifierError where it could not be asked.
        """
        ...

    def close(self) -> object:
        """Ends what was started. It also ends with this object, or with the program."""
        ...
