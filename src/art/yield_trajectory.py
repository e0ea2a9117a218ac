"""`yield_trajectory` and its capture, at an import path that users know; the code is in `art.capture`.

Python makes an imported module an attribute of its package, in the place of the function of the same name:
`art.yield_trajectory` can be called either way.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from art.capture.yielded import capture_yielded_trajectory, yield_trajectory

if TYPE_CHECKING:
    from art.trajectories import Trajectory

__all__ = ["capture_yielded_trajectory", "yield_trajectory"]


class _Callable(ModuleType):
    def __call__(self, trajectory: Trajectory) -> None:
        yield_trajectory(trajectory)


sys.modules[__name__].__class__ = _Callable
