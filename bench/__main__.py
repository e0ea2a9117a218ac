"""Run all benchmarks, or those named, in turn, each in its own process: `python -m bench [NAME ...]`."""

from __future__ import annotations

import argparse
import subprocess
import sys

BENCHES = {
    "client": "serving.client",
    "transport": "serving.transport",
    "engine": "sampling.engine",
    "vllm": "sampling.vllm",
    "tree": "gradient.tree",
    "loop": "serving.loop",
    "learning": "learning.quickstarts",
    "train": "gradient.train",
    "packing": "gradient.packing",
    "tokens": "gradient.tokens",
    "memory": "gradient.memory",
    "gateway": "serving.gateway",
    "environments_held": "serving.environments_held",
    "neighbours": "serving.neighbours",
    "connections": "serving.connections",
    "together": "serving.together",
    "overlap": "learning.overlap",
    "end_to_end": "learning.end_to_end",
    "ruler": "learning.ruler",
    "mcp": "learning.mcp",
    "autorl": "learning.autorl",
    "own_tasks": "learning.own_tasks",
    "replicas": "nodes.replicas",
    "shelf": "nodes.shelf",
    "scale": "nodes.scale",
    "scaling": "nodes.scaling",
    "postgres": "serving.postgres",
    "ranks": "nodes.ranks",
    "gateways": "serving.gateways",
    "cluster": "nodes.cluster",
}
"""Name -> module of this package. The folders are what is measured."""
ON_REQUEST = {
    "algorithms": "learning.algorithms",
    "environments": "learning.environments",
    "examples": "learning.examples",
    "gpu": "gpu",
    "kills": "nodes.kills",
    "league": "learning.league",
    "real": "real",
    "skills": "learning.skills",
    "sweep": "learning.sweep",
    "tinker": "tinker.steps",
    "ui": "serving.ui",
}
"""Only when named: long runs that write into docs, what needs libraries, CUDA or a browser."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    known = BENCHES | ON_REQUEST
    about = f"one of {', '.join(known)}; default: all but the last {len(ON_REQUEST)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=about)
    names = parser.parse_args(arguments).names
    if unknown := sorted(set(names) - known.keys()):
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(known)}")
    commands = [[sys.executable, "-m", f"bench.{known[name]}"] for name in names or BENCHES]
    return max(subprocess.run(command).returncode for command in commands)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
