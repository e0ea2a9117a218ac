"""`art.engine.protocol.Constraint` as JSON: to an engine with a request, to a trainer with its samples."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from art.wire.strict import Strict


class ConstraintBody(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str
