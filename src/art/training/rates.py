"""The learning rate that the literature gives for a model's size.

`None` asks for 5e-5 x (2000 / hidden size)^e for all weights and ten times that for a LoRA; e is 0.0775 for
Qwen models, 0.781 for Llama. (Thinking Machines, "LoRA without regret" and the Tinker cookbook's `get_lr`,
2025.) Other families take Qwen's e, the cautious one for small models.
"""

from __future__ import annotations

from typing import Any

BASE_RATE = 5e-5
LORA_FACTOR = 10.0
EXPONENTS = {"llama": 0.781}
QWEN_EXPONENT = 0.0775


def rate_by_size(config: Any, *, lora: bool) -> float:
    """The literature's rate for a model with this configuration (`hidden_size`, `model_type`).

    >>> from types import SimpleNamespace
    >>> round(rate_by_size(SimpleNamespace(hidden_size=2560, model_type="qwen3"), lora=True), 6)
    0.00049
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    exponent = EXPONENTS.get(text.model_type, QWEN_EXPONENT)
    return float(BASE_RATE * (LORA_FACTOR if lora else 1.0) * (2000 / text.hidden_size) ** exponent)
