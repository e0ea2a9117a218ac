"""A model behind any address that speaks OpenAI's chat completions.

An endpoint may refuse a form of the question: that is remembered, so that it is refused once. What openai's
exceptions mean for the program that asks is one of: ask again, later, shorter, or never.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from art.errors import (
    ARTError,
    ConfigurationError,
    LlmBusyError,
    LlmError,
    LlmRefusedError,
    LlmTimeoutError,
    LlmTooLongError,
    LlmUnavailableError,
)
from art.process.imports import import_lock
from art.recording.listeners import listening
from art.rewards.llm.params import Params, pricing_of, usd_of
from art.rewards.llm.request import Reply, Request, Usage
from art.tracking.prices import TokenPricing

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion


BUSY = frozenset({429, 503, 529})
"""529 is Anthropic's "overloaded"."""
DENIED = frozenset({401, 403})
SHOWN = 300
TOO_LONG = ("context_length", "context length", "context window", "maximum context", "too many tokens")
UNSAFE = ("content_filter", "content_policy", "content management policy", "safety system")
NO_MONEY = ("insufficient_quota", "insufficient_balance", "billing_hard_limit")


def as_art_error(error: openai.OpenAIError, name: str, *, key: str | None = None) -> ARTError:
    """The error of ours that says the same. name: of the model that was asked.

    key: what no message may hold, though an endpoint repeats it: messages become logs and reasons.
    """
    with import_lock:
        import openai

    full = str(error).replace(key, "[the key]") if key else str(error)
    said = full[:SHOWN]
    if isinstance(error, openai.APITimeoutError):
        return LlmTimeoutError(f"{name!r} did not answer in time")
    if isinstance(error, openai.APIStatusError):
        return error_of_status(
            error.status_code, said, f"{_code(error)} {full}", error.response.headers, name
        )
    return LlmUnavailableError(f"{name!r} could not be asked: {said}")


def error_of_status(status: int, text: str, full: str, headers: Mapping[str, str], name: str) -> ARTError:
    """The same from the parts of an HTTP answer. full: all that it says, with its code."""
    low = full.lower()
    if any(word in low for word in NO_MONEY):
        return ConfigurationError(f"{name!r}: the account behind the key has no money left: {text}")
    if status in BUSY:
        return LlmBusyError(f"{name!r} asks for fewer requests: {text}", retry_after=retry_after(headers))
    if status in DENIED:
        return ConfigurationError(f"{name!r} does not accept the key (HTTP {status}): {text}")
    if 300 <= status < 400:
        place = str(headers.get("location", ""))[:SHOWN]
        return LlmError(
            f"{name!r} redirects to {place!r}, and no redirect is followed: give that address as base_url "
            "if you trust it"
        )
    if status in {408, 409} or status >= 500:
        return LlmUnavailableError(f"{name!r} failed with HTTP {status}: {text}")
    if status == 413 or any(word in low for word in TOO_LONG):
        return LlmTooLongError(f"the question is too long for {name!r}: {text}")
    if any(word in low for word in UNSAFE):
        return LlmRefusedError(f"{name!r} declined: {text}")
    return ConfigurationError(f"{name!r} refuses the request (HTTP {status}): {text}")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, as `Retry-After` (seconds or a date) or `retry-after-ms` says."""
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return exact / 1000
    header = headers.get("retry-after")
    if header is None or (seconds := _number(header)) is not None:
        return seconds if header is not None else None
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _code(error: openai.APIStatusError) -> Any:
    return getattr(error, "code", None) or ""


LIMITS = ("max_tokens", "max_completion_tokens")
OBJECTS = "json_object"
SCHEMA = "json_schema"
PLAIN = "plain"
WEAKER = {SCHEMA: OBJECTS, OBJECTS: PLAIN}
ABOUT_FORM = ("response_format", "json_schema", "json_object", "guided_json", "structured output")


class AnswerForm:
    """The request features that this endpoint accepts. It starts with all, and removes those that are
    rejected.
    """

    def __init__(self, *, token_limit: str = "max_tokens") -> None:
        """token_limit: what the endpoint calls the limit of a completion."""
        self.answers = SCHEMA
        self.token_limit = token_limit
        self.takes_temperature = True

    def body(self, request: Request, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Keywords of `chat.completions.create` but the model. sampling: what the user chose; it wins."""
        body: dict[str, Any] = {"messages": [dict(message) for message in request.messages]}
        if request.max_tokens is not None and not any(limit in sampling for limit in LIMITS):
            body[self.token_limit] = request.max_tokens
        if request.temperature is not None and self.takes_temperature and "temperature" not in sampling:
            body["temperature"] = request.temperature
        if request.schema is not None:
            self._ask_for(request, body)
        return body | dict(sampling)

    def _ask_for(self, request: Request, body: dict[str, Any]) -> None:
        schema = dict(request.schema or {})
        if self.answers == SCHEMA:
            form = {"name": request.schema_name, "schema": schema, "strict": is_strict(schema)}
            body["response_format"] = {"type": SCHEMA, SCHEMA: form}
            return
        body["messages"] = with_schema(body["messages"], schema)
        if self.answers == OBJECTS:
            body["response_format"] = {"type": OBJECTS}

    def give_way(self, text: str, body: Mapping[str, Any], request: Request) -> bool:
        """Returns whether a request that was refused with these words may be made in another way."""
        low = text.lower()
        asked = body.get("response_format", {}).get("type")
        if asked is not None and any(word in low for word in ABOUT_FORM):
            # Several questions may be refused at once: each weakens only what it asked for itself.
            self.answers = WEAKER[asked] if self.answers == asked else self.answers
            return True
        limit = next((name for name in LIMITS if name in body), None)
        if limit is not None and limit in low and body[limit] == request.max_tokens:
            other = LIMITS[1 - LIMITS.index(limit)]
            if other in low or "unsupported" in low:
                self.token_limit = other
                return True
        if "temperature" in low and request.temperature is not None and "temperature" in body:
            changed, self.takes_temperature = self.takes_temperature, False
            return changed
        return False


def is_strict(schema: Any) -> bool:
    """Returns whether OpenAI's strict mode takes the schema: objects are closed, and all their fields
    required.
    """
    if isinstance(schema, list):
        return all(is_strict(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        fields = schema.get("properties", {})
        closed = schema.get("additionalProperties") is False and set(schema.get("required", ())) == set(
            fields
        )
        return (
            closed and all(is_strict(field) for field in fields.values()) and is_strict(schema.get("$defs"))
        )
    return all(is_strict(part) for name, part in schema.items() if name not in {"enum", "const", "default"})


def with_schema(messages: list[dict[str, Any]], schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages with the schema as a sentence of the system message: where the user's data is not."""
    text = f"Answer with one JSON value, and nothing else, that fits this JSON schema:\n{json.dumps(schema)}"
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
FORM_CHANGES = 4
"""An endpoint may refuse the schema, then the JSON mode, the token limit's name and the temperature."""
CONNECT_S = 10.0
LEAST_KEY = 8
"""Letters of what can be a secret; a shorter key is a word that a server of one's own wants to see."""
MOST_BYTES = 4 << 20
"""The limit in bytes of one reply. A verdict has a few thousand."""
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What reading a reply raises that is no chat completion: no UTF-8, no JSON, too deep, other types."""
MOST_S = 3600.0
"""The timeout in seconds of one attempt where none is given; the caller has a shorter deadline."""


class EndpointLlm:
    """A model behind an endpoint, called with the `openai` SDK without its retries: `Channel` has its own."""

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
        self._form = AnswerForm(token_limit=token_limit)
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
        """The price of its tokens; None if it is not known beforehand."""
        return pricing_of(self.model, self._given)

    @cached_property
    def _client(self) -> Any:
        from art.client.http.openai_client import plain_client

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
        with import_lock:
            import openai

        from art.client.http.openai_client import ReplyTooLargeError

        for _ in range(FORM_CHANGES):
            body = self._form.body(request, self.params.sampling)
            try:
                return self._reply(await self._create(body))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self._form.give_way(str(error), body, request):
                    raise as_art_error(error, self.name, key=self._secret) from error
            except openai.OpenAIError as error:
                raise as_art_error(error, self.name, key=self._secret) from error
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
            usd=usd_of(completion, provider=self.provider, model=self.model, pricing=self._given),
        )
