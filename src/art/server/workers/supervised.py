"""A supervised worker of a base model, with the server's own deadlines and folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art.server.control_settings import ControlSettings
from art.server.data_layout import DataLayout
from art.server.workers.supervisor import RestartPolicy, Supervisor, WhenGivenUp, WhenUp
from art.server.workers.workers import WorkerSpec, module_command


def supervise(
    name: str,
    module: str,
    config: Mapping[str, Any],
    *,
    layout: DataLayout,
    settings: ControlSettings,
    when_up: WhenUp,
    when_given_up: WhenGivenUp = lambda failure: None,
) -> Supervisor:
    """What keeps the worker `module` alive; it is not started yet. config: its start line, without a key."""
    spec = WorkerSpec(
        name=name,
        command=module_command(module),
        config=config,
        log_path=layout.log_file(name),
        start_deadline=settings.start,
        stop_deadline=settings.stop,
        health_interval=settings.health_interval,
        health_deadline=settings.health_deadline,
    )
    policy = RestartPolicy(limit=settings.restarts, backoff=settings.restart_wait)
    return Supervisor(spec, when_up=when_up, when_given_up=when_given_up, policy=policy)
