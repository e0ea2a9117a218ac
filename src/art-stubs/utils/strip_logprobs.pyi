# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.stripped_logprobs import strip_logprobs as strip_logprobs

__all__ = ["strip_logprobs"]

