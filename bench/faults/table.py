"""The table of the matrix: the whole product, each cell to be run or left out with its reason."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("table.toml")
SELDOM = frozenset({"judge", "mcp"})
"""Components whose loss a run may survive with fewer rollouts."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fault of one component in one phase. why: the reason why it is not run; empty: it is."""

    component: str
    phase: str
    fault: str
    why: str = ""
    is_open: bool = False

    @property
    def name(self) -> str:
        return f"{self.component}/{self.phase}/{self.fault}"

    @property
    def may_lose_rollouts(self) -> bool:
        return self.component in SELDOM


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Why the cells of some names are left out. Empty names: all."""

    why: str
    is_open: bool
    component: tuple[str, ...]
    phase: tuple[str, ...]
    fault: tuple[str, ...]

    def fits(self, *names: str) -> bool:
        """names: component, phase, fault."""
        wanted = (self.component, self.phase, self.fault)
        return all(not one or name in one for one, name in zip(wanted, names, strict=True))


@dataclass(frozen=True)
class FaultTable:
    """What `table.toml` says."""

    components: tuple[str, ...]
    phases: tuple[str, ...]
    faults: tuple[str, ...]
    rules: tuple[Rule, ...]

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The whole product, in the table's order."""
        return tuple(self._cell(*names) for names in product(self.components, self.phases, self.faults))

    @cached_property
    def runnable(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if not cell.why)

    def find(self, names: Sequence[str]) -> tuple[Cell, ...]:
        """Returns cells that are run, by `COMPONENT/PHASE/FAULT`; `*` stands for any name. Raises ValueError
        for a name that is not in the table, and for one whose cells are all left out.
        """
        found: dict[str, Cell] = {}
        for name in names:
            parts = name.split("/")
            known = (self.components, self.phases, self.faults)
            if len(parts) != len(known):
                raise ValueError(f"{name!r} is not COMPONENT/PHASE/FAULT")
            for part, names_of in zip(parts, known, strict=True):
                if part not in (*names_of, "*"):
                    raise ValueError(f"{part!r} of {name!r} is not in the table: {', '.join(names_of)}")
            fitting = [one for one in self.cells if _fits(parts, one)]
            if all(one.why for one in fitting):
                raise ValueError(f"{name} is left out: {fitting[0].why}")
            found |= {one.name: one for one in fitting if not one.why}
        return tuple(found.values())

    def _cell(self, component: str, phase: str, fault: str) -> Cell:
        rule = next((one for one in self.rules if one.fits(component, phase, fault)), None)
        return Cell(
            component=component,
            phase=phase,
            fault=fault,
            why=rule.why if rule else "",
            is_open=rule is not None and rule.is_open,
        )


def _fits(parts: Sequence[str], cell: Cell) -> bool:
    return all(part in ("*", own) for part, own in zip(parts, cell.name.split("/"), strict=True))


def read_table(path: Path = TABLE) -> FaultTable:
    """Raises ValueError for a rule with a name that is not in the table."""
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {kind: tuple(told[f"{kind}s"]) for kind in ("component", "phase", "fault")}
    rules = tuple(_rule(one, known) for one in told["left_out"])
    return FaultTable(known["component"], known["phase"], known["fault"], rules)


def _rule(told: dict[str, Any], known: dict[str, tuple[str, ...]]) -> Rule:
    names = {kind: tuple(told.get(kind, ())) for kind in known}
    for kind, given in names.items():
        if unknown := sorted(set(given) - set(known[kind])):
            raise ValueError(f"a rule names the {kind} {unknown[0]!r}; known: {', '.join(known[kind])}")
    return Rule(why=told["why"], is_open=told.get("open", False), **names)
