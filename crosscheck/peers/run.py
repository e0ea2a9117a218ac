"""Runs one peer's cases in its own environment: every figure of every case, in float64.

python -P run.py PEER.py FIXTURES RESULTS
"""

from __future__ import annotations

import runpy
import sys
import warnings


def main(peer: str, fixtures: str, results: str) -> None:
    # By its path: as a module it would bear the name of the package that it calls.
    cases = runpy.run_path(peer)["CASES"]
    from safetensors.torch import load_file, save_file  # after the peer has put its stand-ins in place

    given = load_file(fixtures)
    computed = {
        f"{case}/{part}": tensor.detach().double().contiguous()
        for case, compute in cases.items()
        for part, tensor in compute(dict(given)).items()
    }
    save_file(computed, results)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main(*sys.argv[1:])
