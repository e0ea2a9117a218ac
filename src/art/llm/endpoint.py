"""A model behind any address that speaks OpenAI's chat completions."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from art.capture.listening import listening
from art.errors import LlmError, LlmRefusedError, LlmUnavailableError
from art.llm.failures import typed
from art.llm.forms import LIMITS, Form
from art.llm.params import Params
from art.llm.prices import pricing_of, usd_of
from art.llm.request import Reply, Request, Usage
from art.tracking.price_tables import TokenPricing

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
FORM_CHANGES = 4
"""An endpoint may refuse the schema, then the JSON mode, the token limit's name and the temperature."""
CONNECT_S = 10.0
LEAST_KEY = 8
"""Letters of what can be a secret; a shorter key is a word that a server of one's own wants to see."""
MOST_BYTES = 16 << 20
"""Of one reply. A verdict is a few thousand."""
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What reading a reply raises that is no chat completion: no UTF-8, no JSON, too deep, other types."""
MOST_S = 3600.0
"""Of one attempt; who asks has a shorter deadline of its own."""


class EndpointLlm:
    """Asked with the `openai` SDK, without its retries: `Channel` has its own."""

    def __init__(
        self,
        *,
        name: str,
        model: str,
        base_url: str,
        api_key: str,
        provider: str = "",
        params: Params | None = None,
        pricing: TokenPricing | None = None,
        token_limit: str = "max_tokens",
        identity: str | None = None,
    ) -> None:
        """name: as people write it; model: as the endpoint does. pricing: where no option gives one.

        identity: what the cache knows it by; None: name, options and address, or `cache_name` of the options.
        """
        self.name, self.model, self.base_url, self.provider = name, model, base_url, provider
        self.params = params or Params()
        self.attempts = self.params.attempts
        self._api_key, self._given = api_key, self.params.pricing or pricing
        self._form = Form(token_limit=token_limit)
        self.identity = identity or self._own_identity()

    @property
    def _secret(self) -> str | None:
        return self._api_key if len(self._api_key) >= LEAST_KEY else None

    @property
    def max_tokens(self) -> int | None:
        """The limit of an answer that the user chose; None: the request's."""
        chosen = [self.params.sampling[name] for name in LIMITS if name in self.params.sampling]
        return int(min(chosen)) if chosen else None

    def _own_identity(self) -> str:
        at = urlsplit(self.base_url)
        host = "localhost" if at.hostname in LOOPBACK else at.hostname
        # Where the options name it, its address says nothing: it may have another port each time.
        place = [] if self.params.cache_name is not None else [host, at.port, at.path]
        parts = [self.name, place, self.params.identity()]
        return json.dumps(parts, sort_keys=True, default=str)

    @property
    def pricing(self) -> TokenPricing | None:
        """What its tokens cost; None where that is not known beforehand."""
        return pricing_of(self.model, self._given)

    @cached_property
    def _client(self) -> Any:
        from art.remote.openai_client import plain_client

        # Its connections belong to no single event loop, so programs with several may share it.
        client = plain_client(
            base_url=self.base_url, api_key=self._api_key, most_bytes=MOST_BYTES, follow_redirects=False
        )
        changes: dict[str, Any] = {"max_retries": 0}
        if self.params.organization is not None:
            changes["organization"] = self.params.organization
        return client.with_options(**changes)

    async def complete(self, request: Request) -> Reply:
        """One attempt; asked again only in another form where the endpoint refuses one."""
        import openai

        from art.remote.http_client import ReplyTooLargeError

        for _ in range(FORM_CHANGES):
            body = self._form.body(request, self.params.sampling)
            try:
                return self._reply(await self._create(body))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self._form.give_way(str(error), body, request):
                    raise typed(error, self.name, key=self._secret) from error
            except openai.OpenAIError as error:
                raise typed(error, self.name, key=self._secret) from error
            except ReplyTooLargeError as error:
                raise LlmUnavailableError(f"{self.name!r}: {error}") from error
            except MALFORMED as error:
                raise LlmUnavailableError(
                    f"{self.name!r} answered with something that is no chat completion "
                    f"({type(error).__name__})"
                ) from error
        raise LlmError(f"{self.name!r} refuses every form of the question that we know")

    async def _create(self, body: dict[str, Any]) -> ChatCompletion:
        import httpx

        timeout = httpx.Timeout(self.params.timeout or MOST_S, connect=CONNECT_S)
        with listening(None):  # a judge that is asked inside a rollout is no part of it
            reply: ChatCompletion = await self._client.chat.completions.create(
                model=self.model,
                timeout=timeout,
                extra_headers=dict(self.params.headers),
                extra_body=dict(self.params.body),
                **body,
            )
        return reply

    def _reply(self, completion: Any) -> Reply:
        choices = getattr(completion, "choices", None)
        if not choices:
            raise LlmUnavailableError(f"{self.name!r} answered without a choice")
        choice = choices[0]
        refusal = getattr(choice.message, "refusal", None)
        if refusal or choice.finish_reason == "content_filter":
            raise LlmRefusedError(f"{self.name!r} declined: {refusal or 'content filter'}")
        text = choice.message.content or ""
        if not isinstance(text, str):
            raise TypeError(f"content is {type(text).__name__}")
        return Reply(
            text=text,
            finish_reason=choice.finish_reason,
            usage=self._usage(completion),
        )

    def _usage(self, completion: Any) -> Usage:
        used = completion.usage
        return Usage(
            prompt_tokens=int(getattr(used, "prompt_tokens", 0) or 0),
            completion_tokens=int(getattr(used, "completion_tokens", 0) or 0),
            usd=usd_of(completion, provider=self.provider, model=self.model, given=self._given),
        )
