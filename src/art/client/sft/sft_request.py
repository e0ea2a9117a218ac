"""Supervised training: from trajectories to the batches of one job.

    trajectories --batch_size--> batches     each trained once, at a rate of its own
    trajectory   --> conversations           its messages, and those of each additional history

A conversation that comes again, in the next epoch say, is sent once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from art.client.requests.registration import optimizer_spec
from art.client.requests.train_request import plain_messages, plain_tools
from art.client.sft.sft_rows import sft_trajectories
from art.errors import ConfigurationError, RequestError
from art.trajectories import Trajectory, is_choice
from art.types import TrainSFTConfig, sample_id
from art.wire.jobs import LARGEST_SFT_BODY, SftConversation, SftJobRequest
from art.wire.training import OptimizerSpec

if TYPE_CHECKING:
    from art.backend import SftExample
    from art.openai import MessagesAndChoices

BatchSize = int | Literal["auto"]
AUTO_BATCH_SIZE = 2
"""What "auto" is."""
SUBMIT_S = 900.0
"""A large request takes a while to arrive."""


def resolve_sft_batch_size(batch_size: BatchSize) -> int:
    """The number of trajectories of an update.

    >>> resolve_sft_batch_size("auto")
    2

    Raises ConfigurationError for anything but "auto" and a number from 1 on.
    """
    if batch_size == "auto":
        return AUTO_BATCH_SIZE
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size!r}; it is a number from 1 on, or 'auto'")
    return batch_size


def sft_request(
    job_id: str,
    trajectories: Iterable[SftExample],
    config: TrainSFTConfig,
    internal_config: Mapping[str, Any] | None,
    *,
    expected_step: int | None = None,
) -> SftJobRequest | None:
    """The job; None when there are no trajectories.

    Raises ConfigurationError for a row of an unknown format, for a trajectory in which no assistant speaks,
    for rates that are not one a batch, and for messages that are no JSON; TypeError for what is neither a
    trajectory nor a row; RequestError when it is too large for one request.
    """
    book = _ConversationIndex(last_turn_only=config.assistant_turns == "last")
    of_trajectory = [book.add(number, one) for number, one in enumerate(sft_trajectories(trajectories))]
    if not of_trajectory:
        return None
    size = resolve_sft_batch_size(config.batch_size)
    starts = range(0, len(of_trajectory), size)
    batches = [[index for one in of_trajectory[at : at + size] for index in one] for at in starts]
    return SftJobRequest(
        job_id=job_id,
        conversations=book.conversations,
        batches=batches,
        learning_rates=_rates(config.learning_rate, len(batches), len(of_trajectory), size),
        optimizer=sft_optimizer(internal_config),
        expected_step=expected_step,
    )


def check_sft_size(request: SftJobRequest) -> None:
    """Raise RequestError when the server would not take the request."""
    size = len(request.model_dump_json().encode())
    if size > LARGEST_SFT_BODY:
        raise RequestError(
            f"{len(request.conversations)} conversations are {size} bytes, more than the "
            f"{LARGEST_SFT_BODY} of one request: train in several calls, such as one for each chunk of "
            "create_sft_dataset_iterator",
            status=413,
            code="body_too_large",
        )


def sft_optimizer(internal_config: Mapping[str, Any] | None) -> OptimizerSpec:
    """AdamW as the model's `trainer_args` shape it, but without weight decay, with gradients clipped at 1,
    and with the rates of the call.
    """
    given = optimizer_spec(1.0, internal_config, None)
    return OptimizerSpec(
        learning_rate=None, betas=given.betas, eps=given.eps, weight_decay=0.0, max_grad_norm=1.0
    )


def refuse_sft_options(options: Mapping[str, Any] | None) -> None:
    """Raise ConfigurationError for any further option: there is none."""
    if options:
        raise ConfigurationError(
            f"train_sft(_config={dict(options)!r}): there are no further options; TrainSFTConfig has "
            f"{', '.join(TrainSFTConfig.model_fields)}"
        )


class _ConversationIndex:
    """Conversations in the order in which they first came."""

    def __init__(self, *, last_turn_only: bool) -> None:
        self._last_turn_only = last_turn_only
        self.conversations: list[SftConversation] = []
        self._known: dict[bytes, int] = {}

    def add(self, number: int, trajectory: Trajectory) -> list[int]:
        """The indices of a trajectory's conversations."""
        name = f"trajectory {number}"
        indices = [self._index(name, trajectory.messages_and_choices, trajectory.tools)]
        for h, history in enumerate(trajectory.additional_histories):
            place = f"{name}, additional history {h}"
            indices.append(self._index(place, history.messages_and_choices, history.tools))
        return indices

    def _index(self, name: str, items: MessagesAndChoices, tools: Sequence[Any] | None) -> int:
        messages = plain_messages(name, items)
        spoken = [message for message in messages if message.get("role") == "assistant"]
        if not spoken:
            raise ConfigurationError(
                f"train_sft: {name} has no assistant message, so there is nothing to learn from it; its "
                f"roles: {[message.get('role') for message in messages]!r}"
            )
        for message in spoken[:-1] if self._last_turn_only else ():
            message["weight"] = 0
        offered = plain_tools(name, tools)
        samples = {at: found for at, one in enumerate(items) if is_choice(one) and (found := sample_id(one))}
        spelled = json.dumps([messages, offered, samples], sort_keys=True).encode()
        key = hashlib.blake2b(spelled, digest_size=16).digest()
        if key not in self._known:
            self._known[key] = len(self.conversations)
            conversation = SftConversation(name=name, messages=messages, tools=offered, samples=samples)
            self.conversations.append(conversation)
        return self._known[key]


def _rates(rates: float | Sequence[float], batches: int, trajectories: int, size: int) -> list[float]:
    rates = list(rates) if isinstance(rates, Sequence) else [rates] * batches
    if len(rates) != batches:
        raise ConfigurationError(
            f"TrainSFTConfig.learning_rate has {len(rates)} entries, but {trajectories} trajectories in "
            f"batches of {size} are {batches} batches: give one rate a batch, or one number for all"
        )
    for number, rate in enumerate(rates):
        if not (math.isfinite(rate) and rate >= 0):
            raise ConfigurationError(
                f"the learning rate of batch {number} is {rate!r}; it is a number from 0 on"
            )
    return [float(rate) for rate in rates]
