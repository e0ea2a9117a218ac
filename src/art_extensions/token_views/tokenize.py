"""`trajectory.tokenize()`: the exact ids of a trajectory, from the replies and the server's ledger.

Each history is the prompt and the completion of its last sampled turn, whose prompt has the turns before. A
turn whose prompt does not extend the ids before it (a fork) begins another sequence. Only `tokenizer=` and
its like make text be tokenized again: `rendered_again`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from art.errors import ConfigurationError, NotRegisteredError
from art.exchanges import AnsweredBy
from art.history import History
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import is_choice, kind_of, sample_id
from art_extensions.token_views.histories import (
    CompletionsStringHistory,
    CompletionsTokenHistory,
    DialectHistory,
    histories,
)
from art_extensions.token_views.rendered_again import Rendering, render_again, rendering_of
from art_extensions.token_views.sampled_turns import SampledTurn, SampledTurns
from art_extensions.token_views.tokenized import (
    TokenFlag,
    TokenizedHistory,
    TokenizedMultiHistoryTrajectory,
    TokenizedTrajectory,
    TokenizedTrajectoryGroup,
)

_SAMPLED = TokenFlag.EXACT | TokenFlag.SAMPLED | TokenFlag.ASSISTANT | TokenFlag.OUTPUT


def tokenize(
    given: Trajectory | TrajectoryGroup, *, multi_history: bool = False, **options: Any
) -> TokenizedTrajectory | TokenizedMultiHistoryTrajectory | TokenizedTrajectoryGroup:
    """Returns the tokens of a trajectory, or of each trajectory of a group. See `tokenize_trajectory`."""
    if isinstance(given, TrajectoryGroup):
        found = [tokenize_trajectory(one, multi_history=multi_history, **options) for one in given]
        return TokenizedTrajectoryGroup(group=given, trajectories=found)
    if not isinstance(given, Trajectory):
        raise TypeError(f"tokenize() was given {kind_of(given)}: give it a trajectory or a group")
    return tokenize_trajectory(given, multi_history=multi_history, **options)


def tokenize_trajectory(
    trajectory: Trajectory,
    *,
    multi_history: bool = False,
    reconcile_text_equivalent_tokenizations: bool = False,
    model: Any = None,
    base_model: str | None = None,
    tokenizer: Any = None,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> TokenizedTrajectory | TokenizedMultiHistoryTrajectory:
    """Returns the sequences of a trajectory. Blocking.

    By default every id is as the engine saw it, and conversations without a sampled turn have no sequence.
    tokenizer: a fast tokenizer of transformers, whose chat template renders each conversation again, sampled
    or not; tokens that are not those of the ledger lack `TokenFlag.EXACT`. base_model: the name of the model
    whose tokenizer does so. chat_template, chat_template_kwargs: in place of the tokenizer's own, and its
    further variables. reconcile_text_equivalent_tokenizations: with these, sampled ids stay where they spell
    the text that was rendered; it has nothing to do elsewhere.

    multi_history: any number of sequences; False: the only one. model: the name of a model, where several
    answered, or a registered `art.TrainableModel`, whose server is asked about samples that this program did
    not ask for itself.

    Raises: ConfigurationError where the trajectory is not one sequence, or a template refuses it;
    TokenMismatchError, NotRegisteredError.
    """
    rendering = rendering_of(
        model=model,
        base_model=base_model,
        tokenizer=tokenizer,
        template=chat_template,
        arguments=chat_template_kwargs,
        equal=reconcile_text_equivalent_tokenizations,
    )
    name = model if isinstance(model, str) else None
    sequences: list[TokenizedHistory] = []
    with SampledTurns(_server_of(model)) as turns:
        for one in histories(trajectory, model=name):
            if rendering is None or isinstance(one, CompletionsStringHistory | CompletionsTokenHistory):
                sequences += _sequences(one, turns)
            else:
                sequences.append(_rendered(one, turns, rendering))
    if multi_history:
        return TokenizedMultiHistoryTrajectory(trajectory=trajectory, histories=sequences)
    if not sequences:
        raise ConfigurationError(
            "tokenize(): the trajectory has no turn that ART's server sampled; to have its text tokenized, "
            "give tokenizer= or base_model="
        )
    if len(sequences) != 1:
        raise ConfigurationError(
            f"the trajectory has {len(sequences)} sequences of tokens: use tokenize(multi_history=True), or "
            "choose by `model=`"
        )
    return TokenizedTrajectory(trajectory=trajectory, history=sequences[0])


def _server_of(model: Any) -> AnsweredBy | None:
    if model is None or isinstance(model, str):
        return None
    url, key = model.inference_base_url, model.inference_api_key
    return None if url is None else AnsweredBy(url.rstrip("/"), key or "")


def _rendered(history: DialectHistory, turns: SampledTurns, rendering: Rendering) -> TokenizedHistory:
    sampled = {}
    for place, item in enumerate(history._chat.messages_and_choices):
        if is_choice(item) and sample_id(item) is not None:
            try:
                sampled[place] = turns.read(item, history._answered.get(place))
            except NotRegisteredError:
                continue  # nobody can be asked: its tokens are those of its text
    return render_again(history._chat, sampled, rendering, model=history.model or None)


def _sequences(history: DialectHistory, turns: SampledTurns) -> list[TokenizedHistory]:
    found: list[TokenizedHistory] = []
    items = history._chat.messages_and_choices
    for place, item in enumerate(items):
        if not is_choice(item) or sample_id(item) is None:
            continue
        turn = turns.read(item, history._answered.get(place))
        if not (found and _extend(found[-1], turn)):
            begun = TokenizedHistory(
                history=History(messages_and_choices=[], tools=history._chat.tools),
                model=history.model or None,
                tokens=[],
                logprobs=[],
                flags=[],
            )
            _extend(begun, turn)
            found.append(begun)
        found[-1].history.messages_and_choices = items[: place + 1]
    return found


def _extend(sequence: TokenizedHistory, turn: SampledTurn) -> bool:
    """Adds a turn, if its prompt begins with the ids so far. Returns whether it does."""
    known = len(sequence.tokens)
    if turn.prompt_ids[:known] != sequence.tokens:
        return False
    given = turn.prompt_ids[known:]
    logprobs = TokenFlag.PROCESSED_LOGPROBS
    if turn.unprocessed:
        logprobs |= TokenFlag.RAW_LOGPROBS
    sampled = [_SAMPLED | logprobs] * len(turn.completion_ids)
    if sampled and turn.stopped:
        sampled[-1] |= TokenFlag.STOP
    sequence.tokens += [*given, *turn.completion_ids]
    sequence.logprobs += [*[math.nan] * len(given), *turn.logprobs]
    sequence.flags += [*[TokenFlag.EXACT] * len(given), *sampled]
    return True
