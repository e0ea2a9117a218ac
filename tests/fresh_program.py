"""A program in a fresh interpreter, whose servers and workers are forks nevertheless.

    python fresh_program.py FOLDER [OPTION ...] PROGRAM [ARGUMENT ...]

FOLDER goes on the program's PYTHONPATH: its `sitecustomize` runs `tests/fork_server.py:adopt`. A test starts
this file, which is therefore a fork and has a fork server of its own. It becomes the fresh interpreter, with
the options and the program that were asked for, and the fork server goes on as a child of the same process.
"""

from __future__ import annotations

import os
import sys

import fork_server

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = sys.argv[1]
    fork_server.leave_to_successor()
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
