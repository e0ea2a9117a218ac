# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.progress import _C as _C
from art.tracking.progress import _ts as _ts
from art.tracking.progress import dim as dim
from art.tracking.progress import err as err
from art.tracking.progress import info as info
from art.tracking.progress import ok as ok
from art.tracking.progress import step as step
from art.tracking.progress import warn as warn

__all__ = ["_C", "_ts", "dim", "err", "info", "ok", "step", "warn"]

