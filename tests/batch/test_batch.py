from __future__ import annotations

import math
from dataclasses import replace

import pytest
from made_rows import CENTERED, rollout, sample, two_turns

from art.batch.balance_sheet import add_sheets, check_balance
from art.batch.batch_types import GroupRow
from art.batch.build import build_batch
from art.errors import TokenMismatchError, UnbalancedSheetError
from art.wire.algorithm import AdvantageSpec, Algorithm
from art.wire.jobs import BalanceSheet
from art.wire.rollout_record import ContextRow, SheetRow


def test_two_rollouts_of_two_turns_by_hand() -> None:
    batch = build_batch(
        [GroupRow(rollouts=[two_turns("a", 1.0, 30), two_turns("b", 0.0, 31)])],
        algorithm=CENTERED,
    )
    assert batch.tree.tokens_T.tolist() == [5, 6, 7, 8, 20, 9, 30, 31]
    assert batch.entries.token_E.tolist() == [2, 3, 5, 6, 2, 3, 5, 7]
    assert batch.entries.advantage_E.tolist() == [0.5] * 4 + [-0.5] * 4
    assert batch.entries.logprob_E.tolist() == [-0.5, -1.0] * 4
    assert batch.entries.weight_E.tolist() == [0.25] * 8
    assert batch.normalizer == 2.0
    assert batch.metrics["data/raw_tokens"] == 4 + 7 + 4 + 7
    assert batch.metrics["data/tree_tokens"] == 8
    assert batch.sheet.fates == {"trained": SheetRow(rollouts=2, tokens=8)}


def test_every_fate() -> None:
    groups = [
        GroupRow(
            rollouts=[
                two_turns("won", 1.0, 30),
                two_turns("middle", 0.5, 31),
                rollout("lost", 0.0, sample("l", [5, 6], [7, 9], fork_reason="system prompt changed")),
                two_turns("unscored", None, 33),
                rollout("silent", 0.5),
            ],
            failed=2,
        ),
        GroupRow(
            rollouts=[
                rollout("long", 1.0, sample("x", list(range(50)), [1, 2])),
                rollout("short", -1.0, sample("y", [1], [2])),
            ]
        ),
    ]
    sheet = build_batch(groups, max_length=51).sheet
    assert sheet.started == SheetRow(rollouts=9, tokens=4 + 4 + 2 + 4 + 0 + 2 + 1)
    assert sheet.fates == {
        "trained": SheetRow(rollouts=3, tokens=4 + 2 + 1),
        "zero_advantage": SheetRow(rollouts=1, tokens=4),
        "unscored": SheetRow(rollouts=1, tokens=4),
        "no_samples": SheetRow(rollouts=1, tokens=0),
        "overlong": SheetRow(rollouts=1, tokens=2),
        "failed": SheetRow(rollouts=2, tokens=0),
    }
    assert sheet.forks == {"system prompt changed": 1}


def test_an_overlong_reward_still_counts_in_its_group() -> None:
    group = GroupRow(
        rollouts=[
            rollout("long", 1.0, sample("x", list(range(50)), [1])),
            rollout("short", 0.0, sample("y", [1], [2])),
        ]
    )
    batch = build_batch([group], max_length=50, algorithm=CENTERED)
    assert batch.entries.advantage_E.tolist() == [-0.5]


def test_samples_without_an_advantage_leave_the_tree() -> None:
    group = GroupRow(rollouts=[two_turns("a", 1.0, 30), two_turns("b", 0.5, 31), two_turns("c", 0.0, 32)])
    batch = build_batch([group])
    assert 31 not in batch.tree.tokens_T.tolist()
    assert not build_batch([GroupRow(rollouts=[two_turns("a", 1.0, 30)])]).tree.tokens_T.tolist()
    assert build_batch([]).empty


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completion_logprobs": [-0.5]}, "1 logprobs for 2 sampled ids"),
        ({"completion_logprobs": [-0.5, math.nan]}, "sampled id 1 is nan"),
        ({"completion_logprobs": [-0.5, -math.inf]}, "sampled id 1 is -inf"),
        ({"completion_logprobs": [0.25, -0.5]}, "sampled id 0 is 0.25"),
        ({"completion_logprobs": [-0.5, None]}, "logprob"),
        ({"completion_ids": [7, 8.5]}, "completion ids that are not whole numbers, such as 8.5"),
        ({"prompt_ids": [5, "6"]}, "prompt ids that are not whole numbers, such as '6'"),
        ({"prompt_ids": [5, -6]}, "outside 0..2"),
        ({"prompt_ids": [5, 2**31]}, "outside 0..2"),
        ({"prompt_ids": []}, "no prompt ids"),
    ],
)
def test_a_row_that_cannot_have_been_sampled_is_refused_by_name(
    changes: dict[str, object], message: str
) -> None:
    good, bad = sample("s0", [5], [6]), sample("s1", [5, 6], [7, 8], **changes)
    with pytest.raises(TokenMismatchError, match=message) as refusal:
        build_batch([GroupRow(rollouts=[rollout("game-3", 1.0, good, bad)])])
    assert "Turn 1 of rollout 'game-3' (sample 's1')" in str(refusal.value)


def test_no_sample_is_trained_twice() -> None:
    row = sample("s", [5], [6])
    with pytest.raises(TokenMismatchError, match="rollouts 'a' and 'b'"):
        build_batch(
            [GroupRow(rollouts=[rollout("a", 1.0, row)]), GroupRow(rollouts=[rollout("b", 1.0, row)])]
        )
    with pytest.raises(TokenMismatchError, match="names a sample twice"):
        build_batch([GroupRow(rollouts=[rollout("a", 1.0, row, row)])])


def test_an_unbalanced_sheet_raises_with_the_difference() -> None:
    sheet = BalanceSheet(
        started=SheetRow(rollouts=4, tokens=100), fates={"trained": SheetRow(rollouts=3, tokens=101)}
    )
    with pytest.raises(UnbalancedSheetError, match=r"1 rollouts and -1 tokens .* trained 3/101"):
        check_balance(sheet)
    context = BalanceSheet(
        started=SheetRow(rollouts=1, tokens=9),
        fates={"trained": SheetRow(rollouts=1, tokens=5), "context": SheetRow(tokens=4)},
        context={"greedy": ContextRow(samples=1, tokens=3)},
    )
    with pytest.raises(UnbalancedSheetError, match="4 tokens of the step are context; the reasons say 3"):
        check_balance(context)
    whole = context.model_copy(update={"context": {"greedy": ContextRow(samples=2, tokens=4)}})
    assert check_balance(add_sheets(whole, whole)).context == {"greedy": ContextRow(samples=4, tokens=8)}


def test_a_sample_of_two_rollouts_is_refused_with_what_to_do() -> None:
    rows = [rollout("r1", 1.0, sample("s0", [5], [6])), rollout("r2", 0.0, sample("s0", [5], [6]))]
    with pytest.raises(TokenMismatchError, match=r"'s0' is named by the rollouts 'r1' and 'r2'.*as a dict"):
        build_batch([GroupRow(rollouts=rows)])


def test_a_stale_rollout_is_a_baseline_and_not_trained() -> None:
    stale = replace(two_turns("old", 0.0, 30), stale=True)
    batch = build_batch([GroupRow(rollouts=[stale, two_turns("new", 1.0, 31)])], algorithm=CENTERED)
    assert batch.sheet.fates == {
        "stale": SheetRow(rollouts=1, tokens=4),
        "trained": SheetRow(rollouts=1, tokens=4),
    }
    assert set(batch.entries.advantage_E.tolist()) == {0.5}, "the old reward is in the mean"


def test_discarded_groups_are_on_the_sheet_and_nowhere_else() -> None:
    kept = GroupRow(rollouts=[two_turns("a", 1.0, 30), two_turns("b", 0.0, 31)])
    left = GroupRow(
        rollouts=[two_turns("c", 9.0, 32), two_turns("d", -9.0, 33), two_turns("e", None, 34)],
        failed=1,
        discarded=True,
    )
    for kind in ("centered", "batch_std", "reinforce++"):
        algorithm = Algorithm(advantage=AdvantageSpec(kind=kind), zero_advantage="count")
        alone, beside = (build_batch(groups, algorithm=algorithm) for groups in ([kept], [kept, left]))
        assert beside.entries.advantage_E.tolist() == alone.entries.advantage_E.tolist()
        assert beside.normalizer == alone.normalizer
        assert beside.sheet.fates == {
            **alone.sheet.fates,
            "discarded": SheetRow(rollouts=2, tokens=8),
            "unscored": SheetRow(rollouts=1, tokens=4),
            "failed": SheetRow(rollouts=1, tokens=0),
        }
    assert build_batch([left], algorithm=CENTERED).empty
