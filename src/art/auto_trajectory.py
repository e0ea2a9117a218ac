"""`auto_trajectory` and its capture, at an import path that users know; the code is in `art.capture`.

Python makes an imported module an attribute of its package, in the place of the function of the same name:
`art.auto_trajectory` can be called either way.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from art.capture.auto import auto_trajectory, capture_auto_trajectory

if TYPE_CHECKING:
    from art.trajectories import Trajectory

__all__ = ["auto_trajectory", "capture_auto_trajectory"]


class _Callable(ModuleType):
    def __call__(self, *, required: bool = False) -> Trajectory | None:
        return auto_trajectory(required=required)


sys.modules[__name__].__class__ = _Callable
