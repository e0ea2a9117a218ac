"""`python -m bench gpu`: all parts, on this machine's GPU."""

from __future__ import annotations

import sys

from bench.gpu.parts import main

raise SystemExit(main(sys.argv[1:]))
