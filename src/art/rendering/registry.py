"""Chooses the renderer of a base model, after asking whether the model's name leads anywhere.

Each file of a model has retries of its own: without a network, a tokenizer takes minutes to be missed. So the
hub is asked once before its files are asked for one by one.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError
from art.process.imports import import_lock
from art.rendering.images import read_image_format
from art.rendering.library import LibraryRenderer
from art.rendering.nano import RENDERER_KEY, RENDERER_NAME
from art.rendering.template import (
    ChatFormats,
    GenericToolsRenderer,
    TemplateRenderer,
    keeping_thoughts,
    log_generic_tools,
    make_template_renderer,
)
from art.rendering.tokenizer import FastTokenizer

PROBE_S = 10.0


def is_on_hub(name: str, *, endpoint: str | None = None, cache: Path | None = None) -> bool:
    """True when the hub has the model, False when only the hub's cache on this machine has it.

    endpoint, cache: the hub's address and the cache's folder, where not the usual ones.
    Raises ConfigurationError when neither has it.
    """
    with import_lock:
        from huggingface_hub import HfApi, try_to_load_from_cache
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
        )
        from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # whichever its release speaks through

    cause: Exception
    try:
        HfApi(endpoint=endpoint).model_info(name, timeout=PROBE_S)
    except HFValidationError as error:
        raise ConfigurationError(f"base model {name!r} is no folder here, and no name on the hub") from error
    except GatedRepoError:
        return True  # loading says what to agree to
    except RepositoryNotFoundError as error:
        reason, cause = "the hub has no such model, or a private one (set HF_TOKEN)", error
    except HfHubHTTPError:
        return True  # a hub in trouble: loading tries again
    except (httpx.TransportError, OfflineModeIsEnabled) as error:
        reason, cause = f"the hub cannot be reached ({error})", error
    else:
        return True
    if isinstance(try_to_load_from_cache(name, "tokenizer.json", cache_dir=cache), str):
        return False
    raise ConfigurationError(
        f"base model {name!r} is no folder here, is not in the hub's cache, and {reason}: check the name and "
        "the network. 'art/nano-games', 'art/nano-tools', 'art/nano-mcp' and 'art/nano-words' need none."
    ) from cause


_log = logging.getLogger(__name__)

_FAMILIES = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "llama": "llama-3",
    "qwen3_5": "qwen3.5",
    "gpt_oss": "gpt-oss",
}
"""Renderer to try for a `model_type`, taken only when it writes what the model's own template writes."""

_PROBES: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"role": "user", "content": "Hello there."},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?\n"}),
    (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 2 + 2?"},
    ),
)


def load_fast_tokenizer(model: str, *, here: bool) -> Any:
    """Returns the `PreTrainedTokenizerFast` of a folder or a name on the hub. here: nothing is fetched.

    Raises ConfigurationError.
    """
    with import_lock:
        from transformers import PreTrainedTokenizerFast

    try:
        found = PreTrainedTokenizerFast.from_pretrained(model, local_files_only=here)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:  # or no object
        raise ConfigurationError(f"no fast tokenizer (tokenizer.json) for {model!r}: {error}") from error
    named = found.chat_template if isinstance(found.chat_template, dict) else {"default": found.chat_template}
    if "default" not in named or not all(isinstance(one, str | None) for one in named.values()):
        raise ConfigurationError(
            f"the chat_template of {model!r} is no text, or has no default among several"
        )
    return found


def create_chat_renderer(model: str | Path, *, name: str | None = None) -> LibraryRenderer:
    """The renderer of a base model: a local folder, or a name on the hub.

    `name`: the model's public name, where `model` is a folder that holds it. Order: the marker in
    tokenizer_config.json; the library's renderer of that very model; the one of its family, if it proves to
    write what the chat template writes; the chat template. Takes about a second: call it in a thread.

    Raises: ConfigurationError when there is no such model, no fast tokenizer, or neither a renderer nor a
    chat template.
    """
    folder = Path(model)
    here = folder.is_dir() or not is_on_hub(str(model))
    tokenizer = load_fast_tokenizer(str(model), here=here)
    fast = FastTokenizer(tokenizer)
    fast.name_or_path = name or str(model)
    renderer = _marked(folder, fast) or _registered(fast) or _proven(folder, fast, tokenizer)
    if renderer is None:
        if not tokenizer.chat_template:
            raise ConfigurationError(
                f"{str(model)!r} has no chat template and no known renderer; put {RENDERER_KEY!r} into its "
                f"tokenizer_config.json, with one of: {', '.join(_renderer_names())}"
            )
        renderer = make_template_renderer(tokenizer)
        if isinstance(renderer, GenericToolsRenderer):
            log_generic_tools(f"the chat template of {fast.name_or_path}")
    _log.info("renderer of %s: %s", fast.name_or_path, type(renderer).__name__)
    return LibraryRenderer(
        renderer,
        fast,
        stop_token_ids=_generation_stops(folder),
        formats=ChatFormats(renderer, fast, tokenizer),
        images=read_image_format(str(model), fast, local=here),
    )


def _marked(folder: Path, tokenizer: FastTokenizer) -> Any | None:
    marker = _read_json(folder / "tokenizer_config.json").get(RENDERER_KEY)
    if marker is None:
        return None
    if marker == RENDERER_NAME:
        with import_lock:
            from art.rendering.nano import create_nano_renderer

        return create_nano_renderer(tokenizer)
    if marker not in _renderer_names():
        raise ConfigurationError(
            f"{RENDERER_KEY!r} of {folder}/tokenizer_config.json is {marker!r}; "
            f"known: {', '.join(_renderer_names())}"
        )
    return _of_family(marker, tokenizer)


def _registered(tokenizer: FastTokenizer) -> Any | None:
    with import_lock:
        from renderers.base import MODEL_RENDERER_MAP

    family = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
    return _of_family(family, tokenizer) if family else None


def _proven(folder: Path, fast: FastTokenizer, tokenizer: Any) -> Any | None:
    family = _FAMILIES.get(str(_read_json(folder / "config.json").get("model_type")))
    if family is None or not tokenizer.chat_template:
        return None
    # What comes from the hub may have been named by anybody.
    template = TemplateRenderer(tokenizer, foreign=not folder.is_dir())
    try:
        renderer = _of_family(family, fast)
        for probe in _PROBES:
            messages = [dict(message) for message in probe]
            wanted = template.render_ids(messages, add_generation_prompt=True)
            if renderer.render_ids(messages, add_generation_prompt=True) != wanted:
                return None
    except (AssertionError, ValueError, TypeError, KeyError):
        # The family's markers are missing, or the template refuses a probe: not this family.
        return None
    except (ImportError, OSError, RuntimeError) as error:
        _log.warning("the %s renderer cannot be made here, so the chat template is used: %s", family, error)
        return None
    return renderer


def _of_family(family: str, tokenizer: FastTokenizer) -> Any:
    """The library's renderer of a family, told to keep sampled thinking so that turns can be stitched."""
    with import_lock:
        from renderers.base import create_renderer
        from renderers.configs import config_from_name

    config = type(config_from_name(family))
    return create_renderer(tokenizer, config(**keeping_thoughts(config)))


def _renderer_names() -> list[str]:
    with import_lock:
        from renderers.base import MODEL_RENDERER_MAP

    return [RENDERER_NAME, *sorted(set(MODEL_RENDERER_MAP.values()))]


def _generation_stops(folder: Path) -> tuple[int, ...]:
    stops = _read_json(folder / "generation_config.json").get("eos_token_id")
    if isinstance(stops, int):
        return (stops,)
    return tuple(stop for stop in stops if isinstance(stop, int)) if isinstance(stops, list) else ()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}
