"""What a model says of a prompt's own ids, for those who compare or evaluate and do not sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from art.engine.protocol import Ranked, TopLogprobs
from art.rendering.chat import ChatRenderer
from art.server.dialects.chat_prepared import Prepared

_NOTHING = Ranked(logprobs=[], tops=[])


async def prompt_scores(prompts: Sequence[Prepared], most: int | None) -> Sequence[Ranked | None]:
    """Of each prompt's ids but the first: the logprob at temperature 1, and the `most` probable ids in its
    place. None: it was not asked for. The prompts are of one target.
    """
    if most is None:
        return [None] * len(prompts)
    target = prompts[0].target
    rows = [prepared.stitched.prompt_ids for prepared in prompts]
    asked = [row for row in rows if len(row) > 1]
    ranked = iter(await target.engine.rank(target.adapter, asked, most) if asked else ())
    return [next(ranked) if len(row) > 1 else _NOTHING for row in rows]


def prompt_logprobs_of(
    renderer: ChatRenderer, prompt_ids: Sequence[int], scored: Ranked, *, most: int
) -> list[dict[str, Any] | None]:
    """As vLLM tells them: nothing of the first id; of each other its logprob, rank (where it is known) and
    text, by its id, and the same of the `most` probable ones.
    """
    told: list[dict[str, Any] | None] = [None]
    tops = [top[:most] for top in scored.tops] or [()] * len(scored.logprobs)
    for token_id, logprob, top in zip(prompt_ids[1:], scored.logprobs, tops, strict=True):
        told.append(_told(renderer, token_id, logprob, top))
    return told


def _told(renderer: ChatRenderer, token_id: int, logprob: float, top: TopLogprobs) -> dict[str, Any]:
    best = {other: {"logprob": value, "rank": rank} for rank, (other, value) in enumerate(top, 1)}
    known: dict[int, dict[str, Any]] = {token_id: best.get(token_id, {"logprob": logprob}), **best}
    return {
        str(one): {**said, "decoded_token": renderer.token_bytes(one).decode("utf-8", "replace")}
        for one, said in known.items()
    }
