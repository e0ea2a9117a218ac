# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.console import _C as _C
from art.tracking.console import _ts as _ts
from art.tracking.console import dim as dim
from art.tracking.console import err as err
from art.tracking.console import info as info
from art.tracking.console import ok as ok
from art.tracking.console import step as step
from art.tracking.console import warn as warn

__all__ = ["_C", "_ts", "dim", "err", "info", "ok", "step", "warn"]

