"""The prices of litellm's table, for models that ART's own table does not know.

litellm itself is never loaded for a price: that takes seconds, and its import asks a server. Where a program
has loaded it the table is the one in its memory, else the file that is installed with it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from art.tracking.prices import MILLION, MODEL_TOKEN_PRICING, TokenPricing, names_of

TABLE_FILE = "model_prices_and_context_window_backup.json"
_log = logging.getLogger(__name__)


def litellm_pricing(model_name: str) -> TokenPricing | None:
    """Returns the price under litellm's name of a model; None where litellm has none, or is not installed.

    A model that has a published price under another of its names has none here.
    """
    loaded = getattr(sys.modules.get("litellm"), "model_cost", None)
    table = loaded if isinstance(loaded, Mapping) else _installed_table()
    row = table.get(model_name)
    if not isinstance(row, Mapping) or any(name in MODEL_TOKEN_PRICING for name in names_of(model_name)):
        return None
    return _pricing_in(row)


@lru_cache(maxsize=1)
def _installed_table() -> Mapping[str, Any]:
    try:
        spec = find_spec("litellm")
    except ValueError:  # a program's stand-in in `sys.modules`, which has no files
        spec = None
    files = [Path(place) / TABLE_FILE for place in (spec and spec.submodule_search_locations) or ()]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return {}
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        _log.warning("the prices in %s cannot be read, install litellm again: %s", file, error)
        return {}
    return table if isinstance(table, dict) else {}


def _pricing_in(row: Mapping[str, Any]) -> TokenPricing:
    def million(name: str) -> float | None:
        value = row.get(name)
        return float(value) * MILLION if isinstance(value, int | float) else None

    read = million("cache_read_input_token_cost")
    return TokenPricing(
        prompt_per_million=million("input_cost_per_token"),
        completion_per_million=million("output_cost_per_token"),
        cached_prompt_per_million=read,
        cache_creation_per_million=million("cache_creation_input_token_cost"),
        cache_read_per_million=read,
    )
