# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.message_text import format_message as format_message

__all__ = ["format_message"]

