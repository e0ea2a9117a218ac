"""The tokens of sampled turns: from the reply, where it has them, or from the ledger of who answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from art.errors import NotRegisteredError, TokenMismatchError
from art.exchanges import AnsweredBy, RecordedExchange
from art.types import sample_id
from art.wire.samples import SampleInfo
from art.wire.sampling import PARAMETERS

DEADLINE_S = 60.0
"""The limit in seconds for the ledger to answer about one sample."""


@dataclass(frozen=True, kw_only=True)
class SampledTurn:
    """One completion: the ids of its prompt, and those that were sampled."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    """One for each sampled id."""
    stopped: bool
    """Whether the last id ended it."""
    unprocessed: bool
    """Whether it was drawn from the model's own distribution."""


class SampledTurns:
    """Reads turns. fallback: who is asked about a turn that no recorded call answered."""

    def __init__(self, fallback: AnsweredBy | None) -> None:
        self._fallback = fallback
        self._clients: dict[AnsweredBy, httpx.Client] = {}

    def __enter__(self) -> SampledTurns:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def read(self, choice: Any, exchange: RecordedExchange | None) -> SampledTurn:
        """Returns the tokens of a choice. Raises: TokenMismatchError where nobody has them,
        NotRegisteredError where it is unknown whom to ask.
        """
        found = None if exchange is None else _of_reply(choice, exchange)
        return found or self._of_ledger(choice, exchange)

    def _of_ledger(self, choice: Any, exchange: RecordedExchange | None) -> SampledTurn:
        sample = sample_id(choice)
        asked = (exchange._answered_by if exchange is not None else None) or self._fallback
        if asked is None:
            raise NotRegisteredError(
                f"sample {sample!r}: this program did not ask for it, so its server is unknown; give "
                "`model=`, a registered art.TrainableModel"
            )
        client = self._clients.get(asked)
        if client is None:
            headers = {"authorization": f"Bearer {asked.api_key}"}
            client = self._clients[asked] = httpx.Client(
                base_url=asked.base_url, headers=headers, timeout=DEADLINE_S, trust_env=False
            )
        reply = client.get(f"samples/{quote(str(sample), safe='')}")
        if reply.is_error:
            raise TokenMismatchError(
                f"{asked.base_url} has no tokens of sample {sample!r}: {reply.text:.200}"
            )
        try:
            info = SampleInfo.model_validate_json(reply.content)
        except ValidationError as error:
            raise TokenMismatchError(
                f"{asked.base_url}, sample {sample!r}: no sample of ART: {error}"
            ) from error
        return SampledTurn(
            prompt_ids=info.prompt_ids,
            completion_ids=info.completion_ids,
            logprobs=info.completion_logprobs,
            stopped=info.finish_reason in ("stop", "tool_calls"),
            unprocessed=_is_unprocessed(info.sampling),
        )


def _of_reply(choice: Any, exchange: RecordedExchange) -> SampledTurn | None:
    """The tokens that a reply itself has (`return_token_ids` with `logprobs`)."""
    fields = {**(getattr(exchange.response, "model_extra", None) or {}), **(choice.model_extra or {})}
    prompt, completion = fields.get("prompt_token_ids"), fields.get("token_ids")
    content = getattr(choice.logprobs, "content", None)
    if not isinstance(prompt, list) or not isinstance(completion, list) or not isinstance(content, list):
        return None
    if len(content) != len(completion):
        return None
    return SampledTurn(
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=[one.logprob for one in content],
        stopped=choice.finish_reason != "length",
        unprocessed=_is_unprocessed(exchange.request),
    )


def _is_unprocessed(sampling: Mapping[str, Any]) -> bool:
    shaping = {
        name: value for name, value in sampling.items() if name in PARAMETERS and PARAMETERS[name].shapes
    }
    return all(value is None or value == PARAMETERS[name].default for name, value in shaping.items())
