"""Any model that litellm knows, where litellm is installed (the extra `litellm`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from art.errors import (
    LlmRefusedError,
    LlmTooLongError,
    LlmUnavailableError,
    require_extra,
)
from art.process.imports import import_lock
from art.recording.listeners import listening
from art.rewards.llm.endpoint import AnswerForm, as_art_error
from art.rewards.llm.params import pricing_of, usd_of
from art.rewards.llm.request import Reply, Request, Usage
from art.tracking.prices import TokenPricing

PREFIX = "litellm/"
RETRIES = ("num_retries", "max_retries")


class LitellmLlm:
    """A model called with `litellm.acompletion`, without its retries and its cache: `Channel` has its own."""

    def __init__(self, model: str, params: Mapping[str, Any]) -> None:
        """model: by litellm's name. params: litellm's own keywords, passed on: which there are, it says.

        Raises MissingExtraError where litellm is not installed.
        """
        own = ", or give base_url= of any endpoint that speaks OpenAI's protocol"
        require_extra("litellm", f"{PREFIX}{model}", remedy=own)
        self.name, self.model, self._params = f"{PREFIX}{model}", model, dict(params)
        retries = next((self._params.pop(name) for name in RETRIES if name in self._params), None)
        self.attempts = None if retries is None else int(retries) + 1
        identifying = {name: value for name, value in self._params.items() if name != "api_key"}
        self.identity = json.dumps([self.name, identifying], sort_keys=True, default=str)
        self._form = AnswerForm()

    @property
    def pricing(self) -> TokenPricing | None:
        """The price in ART's table, else in litellm's."""
        return pricing_of(self.model, None) or pricing_of(self.model.partition("/")[2], None)

    async def complete(self, request: Request) -> Reply:
        """One attempt."""
        # It takes seconds to load: the other rollouts go on meanwhile.
        openai, litellm = await asyncio.to_thread(_load_libraries)
        body = self._form.body(request, {}) | self._params
        try:
            with listening(None):
                completion = await litellm.acompletion(
                    model=self.model, num_retries=0, max_retries=0, caching=False, drop_params=True, **body
                )
        except litellm.ContextWindowExceededError as error:
            raise LlmTooLongError(f"the question is too long for {self.name!r}: {error}") from error
        except litellm.ContentPolicyViolationError as error:
            raise LlmRefusedError(f"{self.name!r} declined: {error}") from error
        except openai.OpenAIError as error:  # litellm's own errors are kinds of openai's
            raise as_art_error(error, self.name, key=self._params.get("api_key")) from error
        return self._reply(completion)

    def _reply(self, completion: Any) -> Reply:
        if not completion.choices:
            raise LlmUnavailableError(f"{self.name!r} answered without a choice")
        choice, used = completion.choices[0], getattr(completion, "usage", None)
        usage = Usage(
            prompt_tokens=int(getattr(used, "prompt_tokens", 0) or 0),
            completion_tokens=int(getattr(used, "completion_tokens", 0) or 0),
            usd=usd_of(completion, provider="litellm", model=self.model, pricing=self.pricing),
        )
        return Reply(text=choice.message.content or "", finish_reason=choice.finish_reason, usage=usage)


def _load_libraries() -> tuple[Any, Any]:
    """Returns openai and litellm, whole: who asks while another thread loads them waits for it."""
    with import_lock:
        import openai

        return openai, import_module("litellm")
