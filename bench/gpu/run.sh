#!/usr/bin/env bash
# Installs the kit's wheels without a network, then measures: at most eight minutes in all.
#   bash bench/gpu/run.sh [arguments of python -m bench.gpu.parts]
# Results go to $OUT, or to build/gpu. PYTHON: the interpreter that has torch (default: python3).
set -u
cd "$(dirname "$0")/../.." || exit
. bench/gpu/install.sh
exec "$python" -m bench.gpu.parts --out "${OUT:-build/gpu}" "$@"
