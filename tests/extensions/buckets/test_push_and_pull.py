"""A model in a bucket is the model here, file by file; what was interrupted is never taken for it."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from model_folders import QUICK, contents, write_step

from art.errors import (
    CheckpointMissingError,
    ConfigurationError,
    DeadlineError,
    StepMissingError,
    StorageError,
)
from art.tracking.folders import lock_folder
from art_extensions.buckets.bucket_pull import (
    PullReport,
    Wanted,
    commit_here,
    copy_checkpoint,
    newest_of,
    pull_model,
)
from art_extensions.buckets.bucket_push import push_model
from art_extensions.buckets.store import StorageLimits, Store, model_url
from waiting import DEADLINE_S

KEPT = {"registration.json", ".hidden", "checkpoints/0000/job.json", "checkpoints/0001/job.json"}
"""What stays on the machine."""
LOCKS = {".lock": b"", "trajectories/train/.lock": b""}


@pytest.fixture(params=["s3", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        request.getfixturevalue("s3")
        return "s3://backups/runs/games/models/agent"
    if request.param == "file":
        return f"file://{tmp_path}/bucket/games/models/agent"
    return f"memory://{tmp_path.name}/games/models/agent"


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/games/models/agent"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Where the bucket's files lie."""
    return tmp_path / "bucket" / "games" / "models" / "agent"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The model's folder on another machine."""
    return tmp_path / "other" / "games" / "models" / "agent"


def store(url: str, limits: StorageLimits = QUICK) -> Store:
    return Store(url, limits=limits)


def pull(url: str, folder: Path, **wanted: object) -> PullReport:
    return pull_model(store(url), folder, Wanted(**wanted), commit=commit_here(folder))


@pytest.mark.slow
def test_what_was_pushed_is_pulled_and_nothing_is_copied_twice(model: Path, other: Path, url: str) -> None:
    pushed = push_model(model, store(url))
    assert pushed.steps == [0, 1]
    assert sorted(pushed.files) == ["history.jsonl", "model.json", "trajectories/train/0001.parquet"]
    again = push_model(model, store(url))
    assert (again.steps, again.files, again.bytes) == ([], [], 0)
    assert pull(url, other).steps == [0, 1]
    here, copied = contents(model), contents(other)
    assert json.loads(copied.pop("model.json")) == {"name": "agent"}  # without its key
    sent = {name: body for name, body in here.items() if name not in KEPT | {"model.json"}}
    assert copied == sent | LOCKS
    second = pull(url, other)
    assert (second.steps, second.files) == ([], [])


def test_only_what_changed_travels(model: Path, bucket: str) -> None:
    push_model(model, store(bucket))
    write_step(model, 2)
    with (model / "history.jsonl").open("a") as history:
        history.write('{"step": 2}\n')
    pushed = push_model(model, store(bucket))
    assert (pushed.steps, pushed.files) == ([2], ["history.jsonl"])


def test_the_record_of_rollouts_travels_and_that_of_tokens_stays(
    model: Path, there: Path, bucket: str
) -> None:
    record = model / "steps" / "0001"
    record.mkdir(parents=True)
    (record / "rollouts.jsonl").write_text("{}\n")
    (record / "tokens.safetensors").write_bytes(b"many")
    push_model(model, store(bucket))
    assert (there / "steps" / "0001" / "rollouts.jsonl").is_file()
    assert not (there / "steps" / "0001" / "tokens.safetensors").exists()


def test_no_key_reaches_the_bucket(model: Path, there: Path, bucket: str) -> None:
    (model / "model.json").write_text(json.dumps({"nested": [{"inference_api_key": "sk-secret"}]}))
    push_model(model, store(bucket))
    assert not [name for name, body in contents(there).items() if b"sk-secret" in body]
    (model / "model.json").write_text("inference_api_key: sk-secret")
    with pytest.raises(StorageError, match="is not pushed"):
        push_model(model, store(bucket))
    push_model(model, store(bucket), exclude=["model.json"])
    assert not [name for name, body in contents(there).items() if b"sk-secret" in body]


@pytest.mark.parametrize(
    ("wanted", "steps", "files"),
    [
        ({"step": 0}, [0], 3),
        ({"newest": True}, [1], 3),
        ({"not_after": 0, "side_files": False}, [0], 0),
        ({"exclude": ["trajectories", "checkpoints/0000"]}, [1], 2),
        ({"exclude": ["*.json*"]}, [0, 1], 1),
    ],
)
def test_which_checkpoints_and_files_come(
    model: Path, other: Path, bucket: str, wanted: dict, steps: list[int], files: int
) -> None:
    push_model(model, store(bucket))
    report = pull(bucket, other, **wanted)
    assert report.steps == steps and len(report.files) == files


def test_what_is_not_there_is_named(model: Path, other: Path, bucket: str) -> None:
    with pytest.raises(CheckpointMissingError, match="No checkpoints found"):
        pull(bucket, other)
    push_model(model, store(bucket))
    with pytest.raises(StepMissingError, match=r"of step 7 .*Available steps: \[0, 1\]") as missing:
        pull(bucket, other, step=7)
    assert isinstance(missing.value, ValueError) and isinstance(missing.value, FileNotFoundError)
    with pytest.raises(CheckpointMissingError, match="nothing can be pushed"):
        push_model(other / "nobody", store(bucket))


def test_delete_makes_the_other_side_equal(model: Path, other: Path, there: Path, bucket: str) -> None:
    push_model(model, store(bucket))
    pull(bucket, other)
    write_step(other, 2)
    (other / "notes.txt").write_text("mine")
    pull(bucket, other)
    assert (other / "checkpoints" / "0002").is_dir() and (other / "notes.txt").exists()
    report = pull(bucket, other, delete=True)
    assert report.set_aside == [2] and report.removed == ["notes.txt"]
    assert (other / "checkpoints" / ".0002.rejected-1").is_dir()  # set aside, not lost
    (model / "history.jsonl").unlink()
    (model / "checkpoints" / "0000").rename(model / ".gone")
    push_model(model, store(bucket))
    assert (there / "checkpoints" / "0000").is_dir()
    pushed = push_model(model, store(bucket), delete=True)
    assert sorted(pushed.removed) == ["checkpoints/0000", "history.jsonl"]
    assert not (there / "history.jsonl").exists() and not list((there / "checkpoints" / "0000").glob("*"))
    assert "history.jsonl" not in (there / "files.json").read_text()


def test_a_log_is_not_replaced_while_a_program_adds_to_it(model: Path, other: Path, bucket: str) -> None:
    log = "trajectories/train/0001.jsonl"
    (model / log).write_text("pushed\n")
    push_model(model, store(bucket))
    pull(bucket, other)
    (other / log).unlink()
    with ThreadPoolExecutor(1) as pool:
        with lock_folder((other / log).parent):
            pulled = pool.submit(pull, bucket, other)
            with pytest.raises(TimeoutError):
                pulled.result(timeout=0.5)
            (other / log).write_text("pushed\nand went on\n")
        assert pulled.result(timeout=240).files == []
    assert (other / log).read_text() == "pushed\nand went on\n"
    (other / log).write_text("something else\n")
    assert pull(bucket, other).files == [log] and (other / log).read_text() == "pushed\n"


def test_two_that_went_on_by_themselves_are_not_mixed(model: Path, other: Path, bucket: str) -> None:
    push_model(model, store(bucket))
    write_step(other, 0)
    write_step(other, 1, b"another life")
    with pytest.raises(StorageError, match=r"step 1 .* differs.*another folder"):
        pull(bucket, other)
    assert (other / "checkpoints" / "0001" / "adapter_model.safetensors").read_bytes() == b"another life"
    assert pull(bucket, other, delete=True).set_aside == [1]


def test_an_untouched_step_0_gives_way(model: Path, other: Path, bucket: str) -> None:
    push_model(model, store(bucket))
    write_step(other, 0, b"another seed")
    report = pull(bucket, other)
    assert report.steps == [0, 1] and report.set_aside == [0]


def test_a_history_that_went_on_here_is_kept(model: Path, other: Path, bucket: str) -> None:
    push_model(model, store(bucket))
    pull(bucket, other)
    with (other / "history.jsonl").open("a") as history:
        history.write('{"step": 2}\n')
    pull(bucket, other)
    assert len((other / "history.jsonl").read_text().splitlines()) == 2
    (other / "history.jsonl").write_text("something else\n")
    pull(bucket, other)
    assert (other / "history.jsonl").read_text() == '{"step": 1}\n'


# What was interrupted or changed


def test_a_torn_upload_is_no_step(
    model: Path, other: Path, there: Path, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    push_model(model, store(bucket))
    (there / "checkpoints" / "0001" / "manifest.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert pull(bucket, other).steps == [0]
    assert "step 1" in caplog.text and "interrupted" in caplog.text
    assert push_model(model, store(bucket)).steps == [1]  # the next push repairs it
    assert pull(bucket, other).steps == [1]


def test_the_first_files_of_an_upload_are_not_taken_for_a_plain_adapter(
    model: Path, other: Path, there: Path, bucket: str
) -> None:
    """The adapter's two files are what other programs leave; the marker that goes first tells them apart."""
    push_model(model, store(bucket))
    step = there / "checkpoints" / "0001"
    for name in ("manifest.json", "trainer_state.json", "optimizer.safetensors"):
        (step / name).unlink()
    (step / ".incomplete").write_text("{}")
    assert pull(bucket, other).steps == [0]


@pytest.mark.parametrize(
    "damage",
    [lambda body: body[:-1], lambda body: b"x" + body[1:], lambda body: b""],
    ids=["cut", "changed", "empty"],
)
def test_a_damaged_file_is_never_committed(
    model: Path, other: Path, there: Path, bucket: str, damage
) -> None:
    push_model(model, store(bucket))
    file = there / "checkpoints" / "0001" / "adapter_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    try:
        report = pull(bucket, other)
        assert report.steps == [0]  # its size tells already
    except StorageError as error:
        assert "not what its manifest says" in str(error)
    assert not (other / "checkpoints" / "0001").exists()
    file.write_bytes(whole)
    assert 1 in pull(bucket, other).steps


def test_what_an_interrupted_pull_has_fetched_is_used(
    model: Path, other: Path, there: Path, bucket: str
) -> None:
    push_model(model, store(bucket))
    good = (there / "checkpoints" / "0001" / "adapter_model.safetensors").read_bytes()
    (there / "checkpoints" / "0001" / "optimizer.safetensors").write_bytes(b"moments of X")
    one_by_one = store(bucket, replace(QUICK, parallel=1))  # or the failure may come before the other file
    with pytest.raises(StorageError, match="not what its manifest says"):
        pull_model(one_by_one, other, Wanted(), commit=commit_here(other))
    arriving = other / ".arriving" / "0001" / "adapter_model.safetensors"
    assert arriving.read_bytes() == good
    (there / "checkpoints" / "0001" / "optimizer.safetensors").write_bytes(b"moments of 1")
    # The file is here: it is not asked for again, so that it may even be gone where it came from.
    before = arriving.stat().st_ino
    pull(bucket, other)
    assert (other / "checkpoints" / "0001" / "adapter_model.safetensors").stat().st_ino == before
    assert not (other / ".arriving").exists()


def test_paths_in_a_bucket_cannot_leave_the_folder(
    model: Path, other: Path, there: Path, bucket: str
) -> None:
    push_model(model, store(bucket))
    manifest = there / "checkpoints" / "0001" / "manifest.json"
    entries = json.loads(manifest.read_text())
    entries["files"]["../../../evil"] = entries["files"]["adapter_config.json"]
    manifest.write_text(json.dumps(entries))
    assert pull(bucket, other).steps == [0]
    assert not list(other.parent.rglob("evil"))
    for part in ("..", "a/b", "", ".x"):
        with pytest.raises(ConfigurationError, match="is not a name"):
            model_url("games", part, bucket="b")
        with pytest.raises(ConfigurationError, match="is not a name"):
            model_url(part, "agent", bucket="b")
    with pytest.raises(ConfigurationError, match="prefix"):
        model_url("games", "agent", bucket="b", prefix="a/../..")


def test_a_server_s_folder_is_its_own(model: Path, other: Path, bucket: str) -> None:
    from art.server.data_folder import DataFolderLock

    push_model(model, store(bucket))
    lock = DataFolderLock(other.parents[2] / "server")
    with pytest.raises(StorageError, match="a server uses"):
        pull(bucket, other)
    lock.release()
    assert pull(bucket, other).steps == [0, 1]


# Other programs' checkpoints


def test_a_plain_peft_folder_travels_too(tmp_path: Path, other: Path, there: Path, bucket: str) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    foreign = there / "checkpoints" / "0003"
    foreign.mkdir(parents=True)
    save_file({"w": np.ones(8)}, foreign / "adapter_model.safetensors")
    (foreign / "adapter_config.json").write_text("{}")
    assert pull(bucket, other).steps == [3]
    assert push_model(other, store(f"file://{tmp_path}/second/m")).steps == [3]
    assert pull(f"file://{tmp_path}/second/m", tmp_path / "x" / "g" / "models" / "a").steps == [3]
    cut = (foreign / "adapter_model.safetensors").read_bytes()[:-5]
    (foreign / "adapter_model.safetensors").write_bytes(cut)
    with pytest.raises(StorageError, match="it was cut"):
        pull(bucket, tmp_path / "y" / "g" / "models" / "a")


# Addresses


def test_where_a_model_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_url("p", "m", bucket="b") == "s3://b/p/models/m"
    assert model_url("p", "m", bucket="gs://b/x/", prefix="/y/") == "gs://b/x/y/p/models/m"
    monkeypatch.delenv("BACKUP_BUCKET", raising=False)
    with pytest.raises(ConfigurationError, match="BACKUP_BUCKET"):
        model_url("p", "m")
    monkeypatch.setenv("BACKUP_BUCKET", "mine")
    assert model_url("p", "m") == "s3://mine/p/models/m"


def test_an_address_without_a_file_system_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="no address of files"):
        Store("nonsense://x/y")
    with pytest.raises(ConfigurationError, match="not installed") as missing:
        Store("sftp://me:secret@host/y")
    assert "secret" not in str(missing.value)
    assert Store("memory://me:secret@host/y").url == "memory://host/y"


def test_a_transfer_has_a_deadline(model: Path, bucket: str) -> None:
    with pytest.raises(DeadlineError, match=r"not done within 1e-06 s"):
        push_model(model, store(bucket, StorageLimits(total_s=1e-6)))


def test_the_newest_of_two_places(model: Path, other: Path, bucket: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissingError, match="only step 0 or none"):
        newest_of(other, store(bucket))
    write_step(other, 0)
    with pytest.raises(CheckpointMissingError, match="only step 0 or none"):
        newest_of(other, None)
    push_model(model, store(bucket))
    assert newest_of(other, store(bucket)) == 1
    write_step(other, 2)
    assert newest_of(other, store(bucket)) == 2 == newest_of(other, None)
    copied = copy_checkpoint(other / "checkpoints" / "0002", tmp_path / "copy")
    assert sorted(path.name for path in copied.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "optimizer.safetensors",
        "trainer_state.json",
    ]


# A bucket of S3


@pytest.mark.slow
def test_a_missing_bucket_is_made(s3: str, model: Path) -> None:
    push_model(model, store("s3://not-there-yet/games/models/agent"))
    push_model(model, store("s3://not-there-yet/games/models/second"))
    assert "games/models/agent/files.json" in store("s3://not-there-yet").sizes()


@pytest.mark.slow
def test_a_signed_url_gives_the_file(s3: str, model: Path, bucket: str) -> None:
    import httpx

    made = store("s3://backups/x")
    made.make_bucket()
    made.write("a.zip", b"zip")
    assert httpx.get(made.signed_url("a.zip", 60), trust_env=False, timeout=DEADLINE_S).content == b"zip"
    with pytest.raises(ConfigurationError, match="no signed URLs"):
        store(bucket).signed_url("a.zip", 60)


@pytest.mark.slow
def test_a_file_is_copied_within_a_bucket(url: str) -> None:
    store = Store(url)
    store.make_bucket()
    store.write("0001/adapter.bin", b"weights")
    store.copy("0001/adapter.bin", "checkpoints/0001/adapter.bin")
    assert store.read("checkpoints/0001/adapter.bin") == b"weights" and len(store.sizes()) == 2
    with pytest.raises(FileNotFoundError):
        store.copy("0002/adapter.bin", "checkpoints/0002/adapter.bin")
