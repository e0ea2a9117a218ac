"""`python -m art.process.child MODULE` runs a worker so that it cannot outlive its server, nor hide where it
hangs.
"""

from __future__ import annotations

import faulthandler
import runpy
import select
import signal
import sys

from art.process.environment import die_with_parent
from art.process.resources import pause_collector


def main() -> None:
    """Prepare this process, then become the worker named on the command line."""
    module = sys.argv[1]
    die_with_parent()
    parent = select.poll()
    parent.register(0, 0)
    if parent.poll(0):  # its end of our stdin is closed: it died before it could be told to take us along
        sys.exit(1)
    # A C-level handler: it prints the stacks even when no Python code can run any more.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    pause_collector()  # the worker resumes it when it is ready
    sys.argv = [module, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
