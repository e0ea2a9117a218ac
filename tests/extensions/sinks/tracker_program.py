"""A program that reports to one tracker, and its reader, each a process of its own.

python tracker_program.py write  NAME FOLDER     two models report rows, config, a conversation
python tracker_program.py killed NAME FOLDER     the first goes on with its run; SIGKILL
python tracker_program.py hang   NAME FOLDER     rows for a server that never answers
python tracker_program.py stop   NAME FOLDER     one row, then the server is killed, then two rows
python tracker_program.py read   NAME FOLDER     what the tracker's own reader finds, as JSON
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import sys
import time
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HOSTILE = "val/<script>alert('1')</script> \udc80 ../../x\n" + "y" * 300
WORDS = "<img src=x onerror=alert(1)> \udc80 [[link]](javascript:1)"
FIGURES = ("val/acc", "val/low")
Found = dict[str, dict[str, Any]]


def model_of(name: str, sink: str, folder: Path) -> Any:
    import art

    given: Any = {"name": name, "project": "games", "base_path": str(folder), "report_metrics": [sink]}
    if name == "second":
        return art.Model(**given)
    return art.TrainableModel(
        **given,
        base_model="art/nano-words",
        config={"prompt": "brief", "api_key": "k9", "tags": ["long replies", "try 2"]},
    )


async def write(sink: str, folder: Path) -> None:
    import art

    first, second = (model_of(name, sink, folder) for name in ("first", "second"))
    first.update_wandb_config({"lr": {"peak": 0.1}, "note": WORDS})
    first._run_log.note_training(
        {"learning_rate": 0.00025, "algorithm": {"loss": "cispo"}}
    )  # as train() does
    turn = art.Trajectory(messages_and_choices=[{"role": "user", "content": WORDS}], reward=1.0)
    for step in (3, 1):  # out of order
        await first.log([turn], split="val", step=step, metrics={"acc": step / 4, "low": -1e-3 * step})
    await first.log(metrics={"acc": 0.5, "nan": math.nan, "inf": math.inf}, split="val", step=2)
    await first.log(metrics={HOSTILE: 1.0, "acc": 0.25}, split="val", step=4)
    await second.log(metrics={"acc": -7.0}, split="val", step=1)
    checkpoint = folder / "games" / "models" / "first" / "checkpoints" / "0002"
    checkpoint.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"):
        (checkpoint / name).write_text(name)
    for model in (first, second):
        await model.log(metrics={"acc": 0.5}, split="train", step=2)


async def killed(sink: str, folder: Path) -> None:
    model = model_of("first", sink, folder)
    for step in (5, 6):
        await model.log(metrics={"acc": float(step)}, split="val", step=step)
    os.kill(os.getpid(), signal.SIGKILL)


def hang(sink: str, folder: Path) -> None:
    """Rows for a server that takes connections and never answers."""
    from art.tracking.sinks.registry import Delivery, make_sink
    from art.tracking.sinks.sink import ReportedRun

    with socket.create_server(("127.0.0.1", 0)) as server:
        os.environ["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{server.getsockname()[1]}"
        run = ReportedRun(entity=None, project="games", name="first", run_id=None, folder=folder)
        sent = Delivery(sink, partial(make_sink, sink), run)
        sent.put(methodcaller("log", 0, {"acc": 1.0}), 0.1)
        connection = server.accept()  # the tracker has connected, and waits for an answer
        sent.put(methodcaller("log", 1, {"acc": 1.0}), 600)  # does not wait: the one before is late
        sent.close(time.monotonic() + 0.1)
        connection[0].close()


async def stop(sink: str, folder: Path) -> None:
    model = model_of("first", sink, folder)
    await model.log(metrics={"acc": 7.0}, split="val", step=7)
    address = urlsplit(os.environ["MLFLOW_TRACKING_URI"])
    os.killpg(int(os.environ["SERVER_GROUP"]), signal.SIGKILL)
    while True:
        try:
            socket.create_connection((address.hostname, address.port), timeout=5).close()
        except ConnectionError:
            break
        await asyncio.sleep(0.01)
    for step in (8, 9):
        await model.log(metrics={"acc": float(step)}, split="val", step=step)


def read_tensorboard(folder: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Found = {}
    for name in ("first", "second"):
        events = EventAccumulator(str(folder / "games" / "models" / name / "tensorboard"), {"tensors": 0})
        events.Reload()
        tags = events.Tags()
        texts = [
            part.decode()
            for tag in tags["tensors"]
            for event in events.Tensors(tag)
            for part in event.tensor_proto.string_val
        ]
        found[name] = {
            "rows": {tag: [[one.step, one.value] for one in events.Scalars(tag)] for tag in tags["scalars"]},
            "words": "\n".join(text for text in texts if "lr.peak" not in text),
            "config": "\n".join(text for text in texts if "lr.peak" in text),
        }
    return found


def read_trackio(folder: Path) -> Found:
    from trackio.sqlite_storage import SQLiteStorage

    found: Found = {}
    for record in SQLiteStorage.get_run_records("games"):
        rows: dict[str, list[list[float]]] = {}
        words = ""
        for row in SQLiteStorage.get_logs("games", run_id=record["id"]):
            words += json.dumps([value for value in row.values() if isinstance(value, dict)])
            for tag, value in row.items():
                if isinstance(value, float):
                    rows.setdefault(tag, []).append([row["step"], value])
        config = SQLiteStorage.get_run_config("games", record["name"], run_id=record["id"])
        assert record["name"] is not None and record["name"] not in found
        found[record["name"]] = {"rows": rows, "words": words, "config": json.dumps(config)}
        found[record["name"]]["adapters"] = adapters_at_trackio(record)
    return found


def adapters_at_trackio(record: dict[str, Any]) -> dict[str, list[str]]:
    from trackio.sqlite_storage import SQLiteStorage

    adapters = {}
    for one in SQLiteStorage.get_artifacts("games"):
        told = SQLiteStorage.get_artifact_manifest("games", one["name"], "step2")
        if one["name"] == record["name"]:
            adapters["step2"] = sorted(entry["path"] for entry in told["manifest"])
            facts = told["metadata"]
            assert facts["step"] == 2 and facts["config"]["lr.peak"] == 0.1, facts
    return adapters


def read_mlflow(folder: Path) -> Found:
    from mlflow import MlflowClient
    from mlflow.artifacts import load_text

    client, found = MlflowClient(), {}
    experiment = client.get_experiment_by_name("games")
    for run in client.search_runs([experiment.experiment_id]):
        histories = {tag: client.get_metric_history(run.info.run_id, tag) for tag in run.data.metrics}
        tables = client.list_artifacts(run.info.run_id, "val/trajectories")
        name = run.info.run_name
        assert name not in found
        found[name] = {
            "rows": {tag: [[one.step, one.value] for one in history] for tag, history in histories.items()},
            "words": "".join(load_text(f"{run.info.artifact_uri}/{table.path}") for table in tables),
            "config": json.dumps(dict(run.data.params)),
            "tags": run.data.tags,
            "status": run.info.status,
            "adapters": {
                f"step{int(Path(one.path).name)}": sorted(
                    Path(file.path).name for file in client.list_artifacts(run.info.run_id, one.path)
                )
                for one in client.list_artifacts(run.info.run_id, "checkpoints")
            },
            "artifacts": run.info.artifact_uri,
        }
    return found


READERS = {"tensorboard": read_tensorboard, "trackio": read_trackio, "mlflow": read_mlflow}


if __name__ == "__main__":
    what, sink, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if what == "read":
        print(json.dumps(READERS[sink](folder)))
    elif what == "hang":
        hang(sink, folder)
    else:
        asyncio.run({"write": write, "killed": killed, "stop": stop}[what](sink, folder))
