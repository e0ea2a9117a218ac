"""The learning rate that the literature gives for a model's size.

`None` asks for 5e-5 x (2000 / hidden size)^e for all weights and ten times that for a LoRA; e is 0.0775 for
Qwen models, 0.781 for Llama. (Thinking Machines, "LoRA without regret" and the Tinker cookbook's `get_lr`,
2025.) Other families take Qwen's e, the cautious one for small models.
"""

from __future__ import annotations

import logging
from typing import Any

LOG = logging.getLogger(__name__)

BASE_RATE = 5e-5
LORA_FACTOR = 10.0
EXPONENTS = {"llama": 0.781}
QWEN_EXPONENT = 0.0775


def automatic_rate(config: Any, *, lora: bool) -> float:
    """The literature's rate for a model with this configuration (`hidden_size`, `model_type`).

    >>> from types import SimpleNamespace
    >>> round(automatic_rate(SimpleNamespace(hidden_size=2560, model_type="qwen3"), lora=True), 6)
    0.00049
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    exponent = EXPONENTS.get(text.model_type, QWEN_EXPONENT)
    rate = BASE_RATE * (LORA_FACTOR if lora else 1.0) * (2000 / text.hidden_size) ** exponent
    LOG.info(
        "learning rate %.2e chosen for %s with hidden size %d (%s)",
        rate,
        text.model_type,
        text.hidden_size,
        "LoRA" if lora else "all weights",
    )
    return float(rate)
