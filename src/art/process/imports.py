"""One lock for what threads import lazily.

Python has a lock for each module, not for a library. While one thread is inside `import transformers`,
another that asks for `transformers.utils` does not wait for it: it runs that file against a half-made
package, and the parts of such a library import each other. Then a thread gets an ImportError for a name that
is there, or a deadlock that Python breaks with an error of its own.

    with import_lock:
        from transformers import PreTrainedTokenizerFast

Nothing but imports stands inside, so it is held as long as a library loads, once in a process.
"""

from __future__ import annotations

import threading

import_lock = threading.RLock()
"""Held by the thread that imports one of the libraries whose parts import each other."""
