# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.litellm_choices import convert_litellm_choice_to_openai as convert_litellm_choice_to_openai

__all__ = ["convert_litellm_choice_to_openai"]

