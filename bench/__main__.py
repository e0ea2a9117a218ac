"""`python -m bench [NAME ...]`: run all benchmarks, or those named, in turn, each in its own process."""

from __future__ import annotations

import subprocess
import sys

BENCHES = ("client", "engine", "tree", "loop", "learning", "train", "packing", "memory", "end_to_end")


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BENCHES))
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    codes = [subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode for name in names or BENCHES]
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
