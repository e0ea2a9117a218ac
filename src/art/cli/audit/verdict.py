"""One line of an audit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`pass`: it holds. `note`: it does not, and ART works round it. `fail`: mend it before you train."""

    level: Literal["pass", "note", "fail"]
    check: str
    what: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)
