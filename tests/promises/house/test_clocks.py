"""No deadline and no lease hangs on a clock that may be set: each use of the machine's clock is listed with
its reason, and a new one is read before it is.
"""

from __future__ import annotations

import ast
import time
from collections import Counter
from pathlib import Path

import pytest

from art.process.steady_time import steady_time

ROOT = Path(__file__).parents[3] / "src"
STAMP = "a stamp in a record, which nothing waits for"
SHOWN = "an age or a name that a person reads"
FILE_TIMES = "compared with times of files, which are the machine's; wrong, a file is read once more or later"
AGREED = "the other side speaks of moments by the calendar"
ORDER = "only an order of use: what goes first when there is no room"
WALL_CLOCK: dict[str, tuple[int, str]] = {
    "art/client/http/openai_client.py": (1, STAMP),
    "art/process/files.py": (1, FILE_TIMES),
    "art/process/steady_time.py": (1, "the beginning of the time that is steady"),
    "art/recording/captured_reply.py": (2, STAMP),
    "art/recording/taps.py": (2, STAMP),
    "art/rewards/llm/cache.py": (2, ORDER),
    "art/rewards/llm/channel.py": (2, STAMP),
    "art/rewards/llm/endpoint.py": (1, AGREED),
    "art/runs/quickstart.py": (1, SHOWN),
    "art/server/dialects/completion_service.py": (1, STAMP),
    "art/server/dialects/completions_request.py": (1, STAMP),
    "art/server/jobs/job_store.py": (3, STAMP),
    "art/server/rollouts.py": (1, STAMP),
    "art/server/tenants.py": (2, FILE_TIMES),
    "art/tracking/names.py": (1, STAMP),
    "art/tracking/prices.py": (1, AGREED),
    "art/trajectories.py": (2, STAMP),
    "art_extensions/agent_apis/responses.py": (1, STAMP),
    "art_extensions/cluster/cluster_record.py": (1, SHOWN),
    "art_extensions/cluster/folder_manifest.py": (1, FILE_TIMES),
    "art_extensions/environments/nemo_gym_items.py": (1, STAMP),
    "art_extensions/langgraph/chat_model.py": (1, STAMP),
    "art_extensions/pipeline/training_steps.py": (1, STAMP),
    "art_extensions/postgres/gateways.py": (1, STAMP),
    "art_extensions/postgres/jobs.py": (3, STAMP),
    "art_extensions/postgres/samples.py": (1, "the partition of a day: today's is never dropped"),
    "art_extensions/scenarios/mcp/rollout.py": (2, STAMP),
    "art_extensions/sinks/mlflow.py": (1, STAMP),
    "art_extensions/sinks/otel.py": (2, STAMP),
    "art_extensions/sinks/tensorboard.py": (1, STAMP),
    "art_extensions/testing/llm_app.py": (1, STAMP),
    "art_extensions/ui/app.py": (1, SHOWN),
    "art_extensions/ui/run_list.py": (1, SHOWN),
    "art_extensions/vllm/runtime.py": (1, STAMP),
}
OF_TIME = frozenset({"time", "time_ns", "ctime", "localtime", "gmtime"})
OF_DATE = frozenset({"now", "utcnow", "today"})


def uses_of_the_wall_clock(text: str) -> int:
    """Of `time.time`, `datetime.now` and their like, called or handed on, and imported from `time`."""
    found = 0
    if not any(word in text for word in ("time.", "from time", "date.")):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += (node.value.id, node.attr) in {("time", one) for one in OF_TIME}
            found += node.value.id in ("datetime", "date") and node.attr in OF_DATE
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            found += node.value.attr in ("datetime", "date") and node.attr in OF_DATE
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += sum(one.name in OF_TIME for one in node.names)
    return found


@pytest.mark.slow
def test_each_use_of_the_machines_clock_is_listed_with_its_reason() -> None:
    found = Counter(
        {
            str(path.relative_to(ROOT)): uses_of_the_wall_clock(path.read_text(encoding="utf-8"))
            for path in [*ROOT.glob("art/**/*.py"), *ROOT.glob("art_extensions/**/*.py")]
            if "skeleton" not in path.parts
        }
    )
    listed = Counter({path: count for path, (count, _) in WALL_CLOCK.items()})
    assert dict(+found) == dict(+listed), (
        "a deadline or lease takes time.monotonic() or steady_time(); list any other use: "
        f"new {dict(found - listed)}, gone {dict(listed - found)}"
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import time\nuntil = time.time() + 5", 1),
        ("from time import time\ntime()", 1),
        ("from datetime import datetime\nf(default_factory=datetime.now)", 1),
        ("import datetime\ndatetime.datetime.now()", 1),
        ("import time\ntime.monotonic(); time.sleep(1); now()", 0),
    ],
)
def test_uses_are_found(text: str, count: int) -> None:
    assert uses_of_the_wall_clock(text) == count


def test_steady_time_goes_on_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = steady_time()
    assert abs(before - time.time()) < 86_400.0
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= steady_time() < before + 3_600.0
