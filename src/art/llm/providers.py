"""Who answers under the first part of a model's name: "openai/o3" is `o3` at OpenAI."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from art import environment


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An endpoint that speaks OpenAI's chat completions."""

    base_url: str | None
    """None: only `base_url=` or the variable says it."""
    key_variable: str | None = None
    """None: a key is optional."""
    base_url_variable: str | None = None
    free: bool = False
    """A server of one's own: its tokens cost nothing that we could count."""
    token_limit: str = "max_tokens"
    """What it calls the limit of a completion."""


PROVIDERS = MappingProxyType(
    {
        "openai": Provider(
            base_url="https://api.openai.com/v1",
            key_variable=environment.OPENAI_API_KEY,
            base_url_variable=environment.OPENAI_BASE_URL,
            token_limit="max_completion_tokens",
        ),
        "openrouter": Provider(
            base_url="https://openrouter.ai/api/v1", key_variable=environment.OPENROUTER_API_KEY
        ),
        "anthropic": Provider(
            base_url="https://api.anthropic.com/v1", key_variable=environment.ANTHROPIC_API_KEY
        ),
        "gemini": Provider(
            base_url="https://generativelanguage.googleapis.com/v1beta/openai",
            key_variable=environment.GEMINI_API_KEY,
        ),
        "deepseek": Provider(
            base_url="https://api.deepseek.com/v1", key_variable=environment.DEEPSEEK_API_KEY
        ),
        "groq": Provider(base_url="https://api.groq.com/openai/v1", key_variable=environment.GROQ_API_KEY),
        "together_ai": Provider(
            base_url="https://api.together.xyz/v1",
            key_variable=environment.TOGETHER_API_KEY,
            base_url_variable=environment.TOGETHER_BASE_URL,
        ),
        "mistral": Provider(base_url="https://api.mistral.ai/v1", key_variable=environment.MISTRAL_API_KEY),
        "fireworks_ai": Provider(
            base_url="https://api.fireworks.ai/inference/v1", key_variable=environment.FIREWORKS_API_KEY
        ),
        "xai": Provider(base_url="https://api.x.ai/v1", key_variable=environment.XAI_API_KEY),
        "ollama": Provider(
            base_url="http://localhost:11434/v1",
            base_url_variable=environment.OLLAMA_BASE_URL,
            free=True,
        ),
        "lm_studio": Provider(
            base_url="http://localhost:1234/v1",
            base_url_variable=environment.LM_STUDIO_BASE_URL,
            free=True,
        ),
        "hosted_vllm": Provider(base_url=None, base_url_variable=environment.HOSTED_VLLM_BASE_URL, free=True),
    }
)
"""By the names that litellm's users write."""
