"""What parts need, imported once: each part is a fork of that process. Imports take 14 s on some machines.

A process in which CUDA has begun cannot be forked. Where an import has begun it all the same, a part starts
Python anew.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

MODULES = (
    *("peft", "transformers", "torch._inductor.compile_fx", "torch.nn.attention.flex_attention"),
    *("art.engine.builtin.engine", "art.training.trainer", "bench.gpu.trainer", "bench.gpu.decode"),
)


def import_all() -> None:
    """Imports what the parts import, without beginning CUDA."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to ask for a GPU without beginning CUDA
    for name in MODULES:
        importlib.import_module(name)


def run_module(module: str, arguments: Sequence[str], log: Path) -> None:
    """Becomes the part, in a process group of its own whose output goes to the log; never returns."""
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, other in enumerate((nothing, file, file)):
        os.dup2(other, number)
    if sys.modules["torch"].cuda._is_in_bad_fork():
        os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
    code = 1
    try:
        importlib.import_module(module).main(list(arguments))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        sys.stderr.write(f"{end}\n")
    except BaseException:  # noqa: BLE001  (the process ends here)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
