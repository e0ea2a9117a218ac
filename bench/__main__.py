"""Run all benchmarks, or those named, in turn, each in its own process: `python -m bench [NAME ...]`."""

from __future__ import annotations

import argparse
import subprocess
import sys

BENCHES = (
    "client",
    "transport",
    "engine",
    "vllm",
    "tree",
    "loop",
    "learning",
    "train",
    "packing",
    "tokens",
    "memory",
    "gateway",
    "neighbours",
    "together",
    "overlap",
    "end_to_end",
    "ruler",
    "mcp",
    "autorl",
    "own_tasks",
    "replicas",
    "shelf",
    "scale",
    "scaling",
    "postgres",
    "ranks",
    "gateways",
    "cluster",
)
ON_REQUEST = ("algorithms", "environments", "examples", "gpu", "kills", "league", "skills", "sweep", "ui")
"""Only when named: long runs that write into docs, what needs libraries, CUDA or a browser."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    known = [*BENCHES, *ON_REQUEST]
    about = f"one of {', '.join(known)}; default: all but the last {len(ON_REQUEST)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=about)
    names = parser.parse_args(arguments).names
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(known)}")
    codes = [subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode for name in names or BENCHES]
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
