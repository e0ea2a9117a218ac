"""Whether a base model's name leads anywhere, known before its files are asked for one by one.

Each file has retries of its own: without a network, a tokenizer takes minutes to be missed.
"""

from __future__ import annotations

from pathlib import Path

from art.errors import ConfigurationError

PROBE_S = 10.0


def is_on_hub(name: str, *, endpoint: str | None = None, cache: Path | None = None) -> bool:
    """True when the hub has the model, False when only the hub's cache on this machine has it.

    endpoint, cache: the hub's address and the cache's folder, where not the usual ones.
    Raises ConfigurationError when neither has it.
    """
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
        "the network. 'art/nano-games', 'art/nano-tools' and 'art/nano-mcp' need none."
    ) from cause
