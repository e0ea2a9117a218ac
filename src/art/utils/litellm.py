"""A choice of litellm's as a choice of openai's: the import path that users know."""

from __future__ import annotations

from art.litellm_choice import convert_litellm_choice_to_openai

__all__ = ["convert_litellm_choice_to_openai"]
