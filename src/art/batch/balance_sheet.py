"""The balance sheet: every rollout of a step, and every token it sampled, meets exactly one fate."""

from __future__ import annotations

from art.errors import UnbalancedSheetError
from art.wire.jobs import BalanceSheet
from art.wire.rollout_record import ContextRow, SheetRow

UNTRAINABLE, CONTEXT = "untrainable", "context"
"""Fates of samples whose distribution the trainer does not compute: whole rollouts, parts of trained ones."""


MASKED = "mismatch"
"""Fate of what was to be trained in a step whose mismatch masks dropped everything."""


class SheetAccount:
    """Keeps the account while a batch is built. Started rollouts are counted separately from their fates.

    >>> account = SheetAccount()
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
        self._context: dict[str, ContextRow] = {}

    def start(self, *, rollouts: int, tokens: int) -> None:
        self._started = _add_to_row(self._started, rollouts, tokens)

    def book(self, fate: str, *, rollouts: int, tokens: int) -> None:
        self._fates[fate] = _add_to_row(self._fates.get(fate, SheetRow()), rollouts, tokens)

    def fork(self, reason: str) -> None:
        self._forks[reason] = self._forks.get(reason, 0) + 1

    def set_aside(self, reason: str, *, tokens: int) -> None:
        """One sample that is context, whatever fate its tokens are booked under."""
        self._context[reason] = _add_to_context_row(self._context.get(reason, ContextRow()), 1, tokens)

    def sheet(self) -> BalanceSheet:
        return BalanceSheet(
            started=self._started,
            fates=dict(self._fates),
            forks=dict(self._forks),
            context=dict(self._context),
        )


def check_balance(sheet: BalanceSheet) -> BalanceSheet:
    """The sheet itself, when what started equals the sum of all fates in rollouts and in tokens, and each
    token that is context has its reason.

    Raises UnbalancedSheetError with the differences.
    """
    rollouts = sheet.started.rollouts - sum(row.rollouts for row in sheet.fates.values())
    tokens = sheet.started.tokens - sum(row.tokens for row in sheet.fates.values())
    if rollouts or tokens:
        fates = ", ".join(f"{name} {row.rollouts}/{row.tokens}" for name, row in sorted(sheet.fates.items()))
        raise UnbalancedSheetError(
            f"{rollouts} rollouts and {tokens} tokens of the step are unaccounted for: started "
            f"{sheet.started.rollouts}/{sheet.started.tokens}; by outcome: {fates or 'none'}."
        )
    context = sum(sheet.fates.get(fate, SheetRow()).tokens for fate in (UNTRAINABLE, CONTEXT))
    reasons = sum(row.tokens for row in sheet.context.values())
    if context != reasons:
        raise UnbalancedSheetError(f"{context} tokens of the step are context; the reasons say {reasons}.")
    return sheet


def masked(sheet: BalanceSheet) -> BalanceSheet:
    """The account of a step whose masks dropped every token that was to be trained.

    >>> row = SheetRow(rollouts=1, tokens=9)
    >>> masked(BalanceSheet(started=row, fates={"trained": row})).fates
    {'mismatch': SheetRow(rollouts=1, tokens=9)}
    """
    fates = {MASKED if fate == "trained" else fate: row for fate, row in sheet.fates.items()}
    return check_balance(sheet.model_copy(update={"fates": fates}))


def add_sheets(one: BalanceSheet, other: BalanceSheet) -> BalanceSheet:
    """The account of two batches of one step.

    >>> row = SheetRow(rollouts=1, tokens=9)
    >>> sheet = BalanceSheet(started=row, fates={"trained": row})
    >>> add_sheets(sheet, sheet).fates
    {'trained': SheetRow(rollouts=2, tokens=18)}
    """
    fates, forks = dict(one.fates), dict(one.forks)
    for fate, row in other.fates.items():
        fates[fate] = _add_to_row(fates.get(fate, SheetRow()), row.rollouts, row.tokens)
    for reason, count in other.forks.items():
        forks[reason] = forks.get(reason, 0) + count
    context = dict(one.context)
    for reason, added in other.context.items():
        context[reason] = _add_to_context_row(context.get(reason, ContextRow()), added.samples, added.tokens)
    started = _add_to_row(one.started, other.started.rollouts, other.started.tokens)
    return BalanceSheet(started=started, fates=fates, forks=forks, context=context)


def _add_to_row(row: SheetRow, rollouts: int, tokens: int) -> SheetRow:
    return SheetRow(rollouts=row.rollouts + rollouts, tokens=row.tokens + tokens)


def _add_to_context_row(row: ContextRow, samples: int, tokens: int) -> ContextRow:
    return ContextRow(samples=row.samples + samples, tokens=row.tokens + tokens)
