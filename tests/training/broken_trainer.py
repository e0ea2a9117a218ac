"""A real trainer worker whose step and whose save meet a defect."""

from __future__ import annotations

import sys
from typing import NoReturn

from art.training.trainer import Trainer
from art.training.worker import main


def _meet_defect(*_: object, **__: object) -> NoReturn:
    raise KeyError("no such column")


Trainer.train = Trainer.begin_save = _meet_defect  # type: ignore[method-assign,assignment]
sys.exit(main())
