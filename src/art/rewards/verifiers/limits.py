"""What a limited process may use."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from art.errors import ConfigurationError

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
    """Of address space, which counts more than what is in use."""
    processes: int = 16
    """With threads."""
    disk_bytes: int = 64 * MB
    """All files together; only `file_bytes` holds where there are no namespaces."""
    file_bytes: int = 16 * MB
    open_files: int = 64
    output_bytes: int = MB
    """Of what is written to stdout, and kept of stderr."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ConfigurationError(
                    f"Limits({field.name}={getattr(self, field.name)!r}): must be above 0"
                )


def side_by_side(at_once: int | None) -> int:
    """How many processes may run at a time; None: the machine's cores. Raises ConfigurationError."""
    if at_once is not None and at_once < 1:
        raise ConfigurationError(
            f"at_once={at_once!r}: at least 1 process is needed; None takes the machine's cores"
        )
    return at_once or os.cpu_count() or 1
