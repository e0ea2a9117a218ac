"""vLLM's stock HTTP routes, one function each, with our requests and its replies translated. Nothing of vLLM
is imported.

aiohttp and not httpx: at 64 concurrent completions a request cost 0.2 ms of CPU here against 11 ms, at 1,000
against 21 ms.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import aiohttp
import orjson

from art.engine.constraints import ended_grammar
from art.engine.protocol import Constraint, Delta, GenerateRequest, ImagePrompt, Ranked, Sampling
from art.errors import (
    ARTError,
    NotFoundError,
    RequestError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
    WorkerUnreachableError,
)
from art.wire.sampling import PARAMETERS

LEAST_TEMPERATURE = 0.01
"""The lowest temperature that vLLM samples at as asked; below, it takes another."""
SEEDS = 1 << 63
IMPOSSIBLE = -9999.0
"""What vLLM writes for a logprob of minus infinity."""
KINDS = {"json_schema": "json", "regex": "regex", "lark": "grammar"}
"""Kinds of constraints -> fields of `structured_outputs`, where vLLM compiles them in its own way."""
_OWN_WORDS = ("logit_bias", "min_tokens", "seed", "stop", "stop_token_ids", "top_logprobs")
AS_HERE = tuple(name for name in PARAMETERS if name not in _OWN_WORDS)
"""Parameters that vLLM knows by the same name and value."""


def completion_body(
    request: GenerateRequest, model: str, limit: int, end: int | None = None, *, own_masks: bool = False
) -> dict[str, Any]:
    """The body of a completion. `limit`: tokens that the context leaves. `end`: the tokenizer's end of text.
    `own_masks`: the server may compile constraints with another library than the builtin engine.

    Everything that has a default on the server's side is given: a model's own generation_config must not
    change what is sampled. Raises: RequestError for what vLLM cannot do exactly.
    """
    sampling = request.sampling
    _check_truncation(sampling)
    _check_temperature(sampling)
    body: dict[str, Any] = {
        "model": model,
        "prompt": _shown_ids(request),
        "max_tokens": min(sampling.max_tokens, limit),
        **{name: getattr(sampling, name) for name in AS_HERE},
        "logprobs": sampling.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,  # a turn ends with our stop ids
        "stop_token_ids": list(sampling.stop_token_ids),
        "stop": [string for string in sampling.stop if string],
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "stream": request.stream,
    }
    if sampling.min_tokens:
        body["min_tokens"] = min(sampling.min_tokens, body["max_tokens"])
    if sampling.seed is not None:
        body["seed"] = sampling.seed % SEEDS
    bias = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.constraint is not None:
        if sampling.stop_token_ids and not own_masks:
            grammar = ended_grammar(sampling.constraint, sampling.stop_token_ids)
            body["structured_outputs"] = {"grammar": grammar}
        else:
            body |= {"structured_outputs": _structured(sampling.constraint), "ignore_eos": False}
            if not _ends(sampling, end):
                bias[str(end)] = -100.0
    if bias:
        body["logit_bias"] = bias
    return body


def _shown_ids(request: GenerateRequest) -> list[int]:
    """The prompt as vLLM tells it: a placeholder for each of an image's ids."""
    if request.images is None:
        return list(request.prompt_ids)
    return [request.images.placeholder if one < 0 else one for one in request.prompt_ids]


def image_body(body: dict[str, Any], images: ImagePrompt) -> dict[str, Any]:
    """The body of a completion whose prompt has images, for `/inference/v1/generate`."""
    of_request = ("model", "stream", "return_token_ids")
    left_out = (*of_request, "prompt", "return_tokens_as_token_ids")
    urls = (f"data:image/png;base64,{b64encode(file).decode()}" for file in images.files)
    return {
        **{name: body[name] for name in of_request},
        "token_ids": list(images.ids),
        "content_parts": [{"type": "image_url", "url": url} for url in urls],
        "sampling_params": {name: value for name, value in body.items() if name not in left_out},
    }


def _as_completion(reply: dict[str, Any], shown_ids: Sequence[int]) -> dict[str, Any]:
    """A reply of `/inference/v1/generate` in the words of `/v1/completions`.

    Raises: WorkerError where vLLM made other ids of the prompt's images.
    """
    made = reply.get("prompt_token_ids")
    if made is not None and made != shown_ids:
        raise WorkerError(
            f"vLLM makes {len(made)} ids of a prompt with images that has {len(shown_ids)}: its settings for "
            "images are not ART's. Leave mm_processor_kwargs to ART; attached servers must be started with "
            '--enable-scale-out and \'{"do_resize": false, "do_image_splitting": false}\''
        )
    for choice in reply.get("choices", ()):
        by_place = (choice.get("logprobs") or {}).get("content") or []
        tops = [
            {f"token_id:{one['token_id']}": one["logprob"] for one in at["top_logprobs"]} for at in by_place
        ]
        choice["logprobs"] = {"token_logprobs": [at["logprob"] for at in by_place], "top_logprobs": tops}
    return reply


def score_body(row: list[int], model: str) -> dict[str, Any]:
    """The body that scores a row of at least two ids.

    The last id is scored as one that might be sampled, not as part of the prompt: so a row may be as long as
    the context, of which vLLM wants one token left.
    """
    return {
        "model": model,
        "prompt": row[:-1],
        "max_tokens": 1,
        **{name: PARAMETERS[name].default for name in AS_HERE},
        "prompt_logprobs": 0,
        "logprobs": 0,
        "logprob_token_ids": [row[-1]],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
    }


def read_scores(reply: dict[str, Any], row: list[int]) -> list[float]:
    """The logprobs of `row[1:]`. Raises: WorkerError when the reply lacks one."""
    try:
        choice = reply["choices"][0]
        known = choice["prompt_logprobs"][1:]
        scores = [float(at[str(token)]["logprob"]) for at, token in zip(known, row[1:-1], strict=True)]
        last = choice["logprobs"]["top_logprobs"][0][f"token_id:{row[-1]}"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise WorkerError(f"vLLM's scores of {len(row)} ids cannot be read: {error!r}") from error
    return [*scores, float(last)]


def rank_body(row: list[int], model: str, most: int) -> dict[str, Any]:
    """The body that ranks a row, which leaves one token of the context."""
    body = score_body(row, model)
    del body["logprob_token_ids"]
    return {**body, "prompt": row, "prompt_logprobs": most, "logprobs": None}


def read_ranked(reply: dict[str, Any], row: list[int], most: int) -> Ranked:
    """Reads the ranks of `row[1:]` from a reply. Raises: WorkerError if they are incomplete."""
    try:
        known = reply["choices"][0]["prompt_logprobs"][1:]
        by_place = [{int(token): float(one["logprob"]) for token, one in at.items()} for at in known]
        return Ranked(
            logprobs=[at[token] for at, token in zip(by_place, row[1:], strict=True)],
            tops=[sorted(at.items(), key=lambda pair: -pair[1])[:most] for at in by_place] if most else [],
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise WorkerError(f"vLLM's scores of {len(row)} ids cannot be read: {error!r}") from error


def read_choice(choice: dict[str, Any], most: int = 0) -> Delta:
    """One choice of a completion, whole or streamed, with the `most` probable ids. Raises: WorkerError."""
    ids = choice.get("token_ids") or []
    given = choice.get("logprobs") or {}
    logprobs = given.get("token_logprobs") or []
    reason = choice.get("finish_reason")
    if len(ids) != len(logprobs):
        raise WorkerError(f"vLLM gave {len(ids)} ids and {len(logprobs)} logprobs")
    if reason not in ("stop", "length", None):
        raise WorkerError(f"vLLM ended a request with {reason!r}")
    stopped_by = choice.get("stop_reason")
    return Delta(
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=reason,
        stop_string=stopped_by if isinstance(stopped_by, str) else None,
        top_logprobs=[_top(at, most) for at in given.get("top_logprobs") or []] if most else (),
    )


def _top(known: dict[str, float], most: int) -> list[tuple[int, float]]:
    """vLLM adds the sampled id where it is none of the most probable, and ids that cannot be sampled."""
    possible = ((int(name.rpartition(":")[2]), value) for name, value in known.items() if value > IMPOSSIBLE)
    return sorted(possible, key=lambda pair: -pair[1])[:most]


def _check_temperature(sampling: Sampling) -> None:
    if 0 < sampling.temperature < LEAST_TEMPERATURE:
        raise RequestError(
            f"temperature {sampling.temperature!r}: vLLM samples at {LEAST_TEMPERATURE} or above, or "
            "greedily at 0",
            status=400,
            code="invalid_temperature",
        )


def _check_truncation(sampling: Sampling) -> None:
    """Ours is top_k, top_p, min_p; vLLM's min_p, top_k, top_p. That matters with both of the last two."""
    if sampling.min_p > 0 and sampling.top_p < 1:
        raise RequestError(
            f"min_p {sampling.min_p!r} with top_p {sampling.top_p!r}: vLLM truncates by min_p first, and "
            "would sample from another distribution than the trainer computes; give one of the two",
            status=400,
            code="unsupported_parameter",
        )


def _ends(sampling: Sampling, end: int | None) -> bool:
    """Returns whether the end of text ends it: the one id that vLLM allows where a constraint's text
    may end.
    """
    if end is None:
        raise RequestError(
            "the model's tokenizer has no end-of-text token: vLLM cannot end a constrained text",
            status=400,
            code="unsupported_parameter",
        )
    if sampling.stop_token_ids and end not in sampling.stop_token_ids:
        raise RequestError(
            f"vLLM ends a constrained text with the tokenizer's end-of-text id {end}, which is not among "
            f"the stop ids {list(sampling.stop_token_ids)}",
            status=400,
            code="unsupported_parameter",
        )
    return bool(sampling.stop_token_ids)


def _structured(constraint: Constraint) -> dict[str, Any]:
    if constraint.kind == "choice":
        try:
            return {"choice": orjson.loads(constraint.text)}
        except orjson.JSONDecodeError as error:
            raise RequestError(
                f"the choice {constraint.text!r} is not a JSON list of texts: {error}",
                status=400,
                code="invalid_constraint",
            ) from error
    return {KINDS[constraint.kind]: constraint.text}


CONNECT_SECONDS = 10.0
METRICS = {
    "vllm:iteration_tokens_total_count": "steps",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "sampled_tokens",
    "vllm:prefix_cache_hits_total": "reused_tokens",
    "vllm:num_preemptions_total": "preempted",
}
"""Prometheus names -> fields of EngineHealth; summed over vLLM's engines."""


class VllmClient:
    """One vLLM server, at `http://host:port` or behind a unix socket."""

    def __init__(
        self, url: str, key: str | None, socket: str | None = None, *, control_s: float = 120.0
    ) -> None:
        """`control_s`: seconds of a call that is not a completion."""
        # No limit: the engine sends no more than it has places.
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(socket, limit=0) if socket else aiohttp.TCPConnector(limit=0)
        )
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.url = url.rstrip("/")
        self.key = key
        self.socket = socket
        self._control_s = control_s
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            # Completions take as long as they take: that the engine moves on is seen in its metrics.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            read_bufsize=1 << 20,  # a line of an event stream is one chunk of ids
        )

    async def close(self) -> None:
        await self._session.close()

    async def complete(
        self, body: dict[str, Any], images: ImagePrompt | None = None
    ) -> AsyncGenerator[Delta]:
        """A completion. Leaving the iterator closes the connection, which aborts it.

        images: of the body's prompt, in which placeholders have their places.
        Raises: RequestError, NotFoundError, WorkerError, WorkerDiedError.
        """
        path, sent = "/v1/completions", body
        if images is not None:
            path, sent = "/inference/v1/generate", image_body(body, images)

        def read(said: bytes) -> dict[str, Any]:
            reply: dict[str, Any] = orjson.loads(said)
            return reply if images is None else _as_completion(reply, body["prompt"])

        try:
            async with self._session.post(self.url + path, data=orjson.dumps(sent)) as reply:
                await _check(reply)
                most = int(body["logprobs"])
                if not body["stream"]:
                    yield read_choice(read(await reply.read())["choices"][0], most)
                    return
                async for line in reply.content:
                    if line.startswith(b"data: {"):
                        for delta in _streamed(read(line[6:]), most):
                            yield delta
        except aiohttp.ClientError as error:
            raise self._died_error(error) from error

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A control call. Raises as `complete` does, and WorkerStalledError."""
        return await self._ask("POST", path, body, self._control_s)

    async def get(self, path: str, seconds: float = CONNECT_SECONDS) -> Any:
        return await self._ask("GET", path, None, seconds)

    async def metrics(self) -> dict[str, int]:
        """Counters by the names of EngineHealth's fields."""
        text = await self._ask("GET", "/metrics", None, CONNECT_SECONDS)
        sums = dict.fromkeys(METRICS.values(), 0)
        for line in text.splitlines() if isinstance(text, str) else ():
            name, _, rest = line.partition("{")
            if name in METRICS:
                sums[METRICS[name]] += int(float(rest.rpartition(" ")[2]))
        return sums

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        content = orjson.dumps(body) if body is not None else None
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(method, self.url + path, data=content) as reply,
            ):
                await _check(reply)
                read = await reply.read()
        except TimeoutError as error:
            raise WorkerStalledError(f"vLLM did not answer {path} within {seconds:g} s") from error
        except aiohttp.ClientError as error:
            raise self._died_error(error) from error
        return orjson.loads(read) if reply.content_type == "application/json" else read.decode()

    def _died_error(self, error: aiohttp.ClientError) -> WorkerDiedError:
        unreachable = isinstance(error, aiohttp.ClientConnectorError)
        kind = WorkerUnreachableError if unreachable else WorkerDiedError
        return kind(f"vLLM at {self.url} is gone ({type(error).__name__}: {error})")


async def _check(reply: aiohttp.ClientResponse) -> None:
    if reply.status != 200:
        raise _error(reply.status, await reply.read())


def _error(status: int, content: bytes) -> ARTError:
    """vLLM's error in our terms."""
    try:
        message = str(orjson.loads(content)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = content.decode(errors="replace")[:500]
    if status == 404:
        return NotFoundError(f"vLLM: {message}", status=404, code="model_not_found")
    if 400 <= status < 500:
        return RequestError(f"vLLM: {message}", status=400, code="invalid_request")
    return WorkerError(f"vLLM answered with status {status}: {message}")


def _streamed(chunk: dict[str, Any], most: int) -> list[Delta]:
    if "error" in chunk:
        raise WorkerError(f"vLLM ended a stream: {chunk['error'].get('message')}")
    return [read_choice(choice, most) for choice in chunk.get("choices", [])]
