"""The client's half of the balance: what was sent is what the server accounts for."""

from __future__ import annotations

from collections.abc import Sequence

from art.errors import UnbalancedSheetError
from art.wire.jobs import BalanceSheet, TrainGroup


def check_sheet(sheet: BalanceSheet, groups: Sequence[TrainGroup]) -> None:
    """Every rollout that was sent has met exactly one fate. Raises UnbalancedSheetError otherwise."""
    check_rollouts(sheet, sum(len(group.trajectories) + group.failed for group in groups))


def check_rollouts(sheet: BalanceSheet, sent: int) -> None:
    """As `check_sheet`, of so many rollouts. Raises UnbalancedSheetError."""
    rollouts = sum(row.rollouts for row in sheet.fates.values())
    tokens = sum(row.tokens for row in sheet.fates.values())
    if not sent == sheet.started.rollouts == rollouts or sheet.started.tokens != tokens:
        raise UnbalancedSheetError(
            f"{sent} rollouts were sent; the sheet started {sheet.started.rollouts} and has fates for "
            f"{rollouts}, of {sheet.started.tokens} tokens for {tokens}: {sheet.model_dump_json()}"
        )
