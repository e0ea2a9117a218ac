# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.coloured_lines import _C as _C
from art_extensions.compat.coloured_lines import _ts as _ts
from art_extensions.compat.coloured_lines import dim as dim
from art_extensions.compat.coloured_lines import err as err
from art_extensions.compat.coloured_lines import info as info
from art_extensions.compat.coloured_lines import ok as ok
from art_extensions.compat.coloured_lines import step as step
from art_extensions.compat.coloured_lines import warn as warn

__all__ = ["_C", "_ts", "dim", "err", "info", "ok", "step", "warn"]

