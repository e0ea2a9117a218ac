"""The trajectory that is recorded here: scopes that are opened and closed like a stack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from art.recording.listeners import listening
from art.recording.recorder import RecordedTrajectory, Recorder
from art.recording.taps import capture_foreign_clients

_CAPTURED: ContextVar[RecordedTrajectory | None] = ContextVar("art_captured_trajectory", default=None)


def captured_trajectory() -> Any:
    """Returns the trajectory that is recorded here, or None."""
    return _CAPTURED.get()


@contextmanager
def recorded(trajectory: RecordedTrajectory, *, with_exchanges: bool) -> Iterator[None]:
    """Records the calls made inside."""
    recorder = Recorder(trajectory, with_exchanges=with_exchanges)
    with ExitStack() as inside:
        inside.enter_context(capture_foreign_clients())
        inside.callback(recorder.close)
        inside.enter_context(_capturing(trajectory))
        inside.enter_context(listening(recorder))
        yield


def check_innermost(trajectory: RecordedTrajectory) -> None:
    """Raises: RuntimeError when another trajectory, opened inside of this one, is still recorded."""
    if _CAPTURED.get() is not trajectory:
        raise RuntimeError(
            "a trajectory is closed while another one inside of it is still open: close the inner one first"
        )


@contextmanager
def no_capture() -> Iterator[None]:
    """Calls made inside belong to no trajectory, as those of a judge or of a simulated user."""
    with _capturing(None), listening(None):
        yield


@contextmanager
def _capturing(trajectory: RecordedTrajectory | None) -> Iterator[None]:
    token = _CAPTURED.set(trajectory)
    try:
        yield
    finally:
        _CAPTURED.reset(token)
