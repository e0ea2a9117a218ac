"""The balance sheet: every rollout of a step, and every token it sampled, meets exactly one fate."""

from __future__ import annotations

from art.errors import UnbalancedSheetError
from art.wire.jobs import BalanceSheet, SheetRow


class Account:
    """Keeps the account while a batch is built. What started is counted apart from what became of it.

    >>> account = Account()
    >>> account.start(rollouts=2, tokens=30)
    >>> account.book("trained", rollouts=1, tokens=20)
    >>> account.book("unscored", rollouts=1, tokens=10)
    >>> check_balance(account.sheet()).fates["trained"].tokens
    20
    """

    def __init__(self) -> None:
        self._started = SheetRow()
        self._fates: dict[str, SheetRow] = {}
        self._forks: dict[str, int] = {}

    def start(self, *, rollouts: int, tokens: int) -> None:
        self._started = _plus(self._started, rollouts, tokens)

    def book(self, fate: str, *, rollouts: int, tokens: int) -> None:
        self._fates[fate] = _plus(self._fates.get(fate, SheetRow()), rollouts, tokens)

    def fork(self, reason: str) -> None:
        self._forks[reason] = self._forks.get(reason, 0) + 1

    def sheet(self) -> BalanceSheet:
        return BalanceSheet(started=self._started, fates=dict(self._fates), forks=dict(self._forks))


def check_balance(sheet: BalanceSheet) -> BalanceSheet:
    """The sheet itself, when what started equals the sum of all fates in rollouts and in tokens.

    Raises UnbalancedSheetError with the differences.
    """
    rollouts = sheet.started.rollouts - sum(row.rollouts for row in sheet.fates.values())
    tokens = sheet.started.tokens - sum(row.tokens for row in sheet.fates.values())
    if rollouts or tokens:
        fates = ", ".join(f"{name} {row.rollouts}/{row.tokens}" for name, row in sorted(sheet.fates.items()))
        raise UnbalancedSheetError(
            f"{rollouts} rollouts and {tokens} tokens of the step are unaccounted for: started "
            f"{sheet.started.rollouts}/{sheet.started.tokens}; by fate (rollouts/tokens): {fates or 'none'}."
        )
    return sheet


def add_sheets(one: BalanceSheet, other: BalanceSheet) -> BalanceSheet:
    """The account of two batches of one step.

    >>> row = SheetRow(rollouts=1, tokens=9)
    >>> sheet = BalanceSheet(started=row, fates={"trained": row})
    >>> add_sheets(sheet, sheet).fates
    {'trained': SheetRow(rollouts=2, tokens=18)}
    """
    fates, forks = dict(one.fates), dict(one.forks)
    for fate, row in other.fates.items():
        fates[fate] = _plus(fates.get(fate, SheetRow()), row.rollouts, row.tokens)
    for reason, count in other.forks.items():
        forks[reason] = forks.get(reason, 0) + count
    started = _plus(one.started, other.started.rollouts, other.started.tokens)
    return BalanceSheet(started=started, fates=fates, forks=forks)


def _plus(row: SheetRow, rollouts: int, tokens: int) -> SheetRow:
    return SheetRow(rollouts=row.rollouts + rollouts, tokens=row.tokens + tokens)
