"""A reward from a judge, watched while it trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from art.errors import ConfigurationError
from art.rewards.checks.judge_checks import JudgeChecks
from art.rewards.checks.watch import JudgeWatch
from art.rewards.judging.scorer import Scorer
from art.rewards.judging.views import DIGEST_CHARS, views_of
from art.rewards.reward import GroupScores, Reward, Score, checked
from art.tracking.builder import MetricsBuilder, active_builder
from art.trajectories import TrajectoryGroup


class JudgedReward(Reward):
    """Shows a scorer the views of a group. `score_group` fits `after_each=`: groups are judged while others
    are still sampled.

    What the judge cost goes to the active MetricsBuilder; where none is active, into the group's metrics as
    `costs/judge/<name>`, which a row of the log adds up.
    """

    def __init__(
        self, scorer: Scorer, *, checks: JudgeChecks | None = None, digest_chars: int = DIGEST_CHARS
    ) -> None:
        """checks: what the judge undergoes; None: nothing. digest_chars: of a tool output, as it is shown.

        Raises ConfigurationError.
        """
        if digest_chars < 1:
            raise ConfigurationError(
                f"digest_chars={digest_chars!r}: characters of a tool output, at least 1"
            )
        self.name, self.scorer, self.digest_chars = scorer.name, scorer, digest_chars
        self.watch = JudgeWatch(scorer, checks) if checks is not None else None

    @property
    def label(self) -> str:
        """Lines of older releases begin with "RULER"."""
        return "RULER" if self.name == "ruler" else self.name

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        """The scorer's, without checks."""
        return await self.scorer.score(views_of(group, digest_chars=self.digest_chars))

    async def judge(self, group: TrajectoryGroup) -> GroupScores:
        """The scores; the figures of the checks are metrics of the group."""
        views = views_of(group, digest_chars=self.digest_chars)
        with _costs() as costs:
            scores = checked(self.name, await self.scorer.score(views), len(views))
            figures = await self.watch.after(views, scores, group) if self.watch is not None else {}
        return GroupScores(scores=scores, metrics={**figures, **costs})


@contextmanager
def _costs() -> Iterator[dict[str, float]]:
    """Filled at the end with what judges cost inside, where no builder is active that is told anyway."""
    costs: dict[str, float] = {}
    if active_builder() is not None:
        yield costs
        return
    builder = MetricsBuilder("train")
    with builder.activate_context():
        yield costs
    for key, usd in builder.take().items():
        if key.startswith("costs/train/judge/"):
            costs[key.replace("costs/train/", "costs/", 1)] = usd
