"""Deadlines and bounds of the control half: every wait has one. Times in seconds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from art.wire.strict import Strict


class ControlSettings(Strict):
    """Defaults fit a laptop and a GPU machine alike; a large model needs a longer `start`."""

    serve_registered: bool = False
    """Serve the models of the data folder from the start on, not only when they are registered again."""
    new_ledger: bool = False
    """Begin a new ledger where the folder's is lost. Otherwise the server refuses to start without it."""
    start: float = Field(default=300.0, gt=0)
    """Until a worker must serve, its model loaded."""
    stop: float = Field(default=10.0, gt=0)
    """Until a worker must have ended after its stdin was closed."""
    ending: float = Field(default=60.0, gt=0)
    """From SIGTERM or the end of stdin to the end of the process, whatever is stuck in it."""
    health_interval: float = Field(default=2.0, gt=0)
    health_deadline: float = Field(default=60.0, gt=0)
    """A worker that has not answered for so long has stalled: its stacks are kept, it is started again."""
    restarts: int = Field(default=5, ge=0)
    """So many restarts within ten minutes; then the worker is given up."""
    restart_wait: float = Field(default=0.2, ge=0)
    """Before the first restart; doubles up to ten seconds."""
    call: float = Field(default=120.0, gt=0)
    """Longest wait for a worker to open, save, score or load."""
    train_idle: float = Field(default=600.0, gt=0)
    """Longest silence of a running training step; then the trainer has stalled."""
    job: float = Field(default=6 * 3600.0, gt=0)
    """Longest run of one attempt at a training job."""
    job_attempts: int = Field(default=3, ge=1)
    """How often a job is tried when a worker fails under it."""
    queued_jobs: int = Field(default=64, ge=1)
    """Unfinished training jobs of one model; more are refused with 429."""
    heartbeat: float = Field(default=5.0, gt=0)
    """A blank line in an event stream that has nothing to tell."""
    drain: float = Field(default=600.0, gt=0)
    """Longest wait for the last request of an old adapter."""
    keep_loaded: int = Field(default=3, ge=1)
    """Newest steps of a model that stay in the engine; older ones are loaded again when asked for."""
    parity: Literal["refuse", "warn"] = "refuse"
    """What becomes of a model whose engine and trainer compute different logprobs when it is first served."""
    sleep_engine: Literal["auto", "always", "never"] = "auto"
    """Whether the engine gives its memory back while a step is trained; requests wait until it is saved.
    auto: where an engine and the trainer share a GPU."""
    max_off_policy_steps: int = Field(default=16, ge=0)
    """Rollouts with samples of older steps than so many before the current one are not trained: they are
    stale, whatever a job allows."""
