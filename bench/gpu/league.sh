#!/usr/bin/env bash
# A second visit to the GPU machine: a model that others trained, and one example's program on it.
#   bash bench/gpu/league.sh keep                         keeps the part of the model that came along
#   bash bench/gpu/league.sh EXAMPLE [--seconds 240 ...]  joins the parts, checks the model, runs examples/EXAMPLE/EXAMPLE.py
# Results go to $OUT, or to build/gpu.
set -u
cd "$(dirname "$0")/../.." || exit
kept=${ART_GPU_LUGGAGE:-/tmp/art-gpu-luggage}
python=${PYTHON:-python3}
"$python" -m bench.gpu.luggage keep "$kept" || exit
[ "${1:-}" = keep ] && exit 0
whole=$("$python" -m bench.gpu.luggage join "$kept") || exit
. bench/gpu/install.sh
"$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check --target "$site" "$whole" || exit
exec "$python" -m bench.gpu.league "$@" --out "${OUT:-build/gpu}"
