"""A recorded step is done again from the checkpoint before it, and compared with what it was."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from art.engine.base_models import local_folder, resolve_base
from art.errors import ARTError, ConfigurationError
from art.process.environment import inherited_variables
from art.process.files import disk_error, disk_trouble
from art.process.threads import OMP_NUM_THREADS, cpu_threads, thread_variables
from art.server.jobs.job_table import JobRequest
from art.server.jobs.step_files import computing_versions
from art.tracking.step_record import read_rollouts
from art.training.checkpoint import verify_files
from art.training.policy import choose_placement
from art.training.tally import Progress
from art.training.worker import load_trainer
from art.wire.jobs import TrainJobRequest, TrainResultInfo
from art.wire.models import MANIFEST_FILE
from art.wire.training import Sharding, TrainerConfig
from art_extensions.replay.changed_step import StepChanges
from art_extensions.replay.checkpoint_difference import CheckpointDifference, compare_checkpoints
from art_extensions.replay.kill_place import KillPlace
from art_extensions.replay.made_step import ignore_tokens, make_step
from art_extensions.replay.recorded_step import RecordedStep, read_recorded
from art_extensions.replay.rollout_shares import MeasuringTrainer, RolloutShare, measure_shares
from art_extensions.replay.step_gradient import FILE as GRADIENT_FILE
from art_extensions.replay.step_gradient import gradient_error
from art_extensions.replay.step_ranks import make_step_elsewhere

NO_KEY = "-" * 16
"""The key of a trainer that nobody can reach."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedStep:
    """A step that was done again, and how it differs from the recorded one."""

    recorded: RecordedStep
    changes: StepChanges
    difference: CheckpointDifference
    metrics: Mapping[str, float]
    notes: Sequence[str]
    shares: Sequence[RolloutShare] = ()
    """Each trained rollout's share of the gradient, where it was asked for."""
    killed_at: KillPlace | None = None
    """Where the process was killed that did the step first."""
    left_behind: Sequence[str] = ()
    """The names of what that process left in the folder of checkpoints."""
    gradient_error: float | None = None
    """Relative, of the changed step's gradient against that of the unchanged one, which was replayed too (see
    `step_gradient`). None without a change, and where a note says why.
    """


def replay_step(
    run: str,
    step: int,
    data_dir: Path,
    changes: StepChanges | None = None,
    *,
    shares: bool = False,
    kill_at: KillPlace | None = None,
    database: str | None = None,
    progress: Progress = ignore_tokens,
) -> ReplayedStep:
    """Does the step of a model (`project/name`) again, in a temporary folder; with a change, also as it was.

    shares: measures each rollout's share of the gradient too. kill_at: the process that does the step is
    killed there, and another one goes on. database: the URL of the one that the server kept jobs and samples
    in. progress: is called with the tokens of a batch that are forwarded, and with all of them, where this
    process does the step.

    Raises ReplayError for what was not recorded, ConfigurationError for a change that makes no sense,
    DiskError where the temporary folder cannot be written, and what training raises.
    """
    changes = changes or StepChanges()
    recorded = read_recorded(run, step, data_dir, database)
    for folder in (recorded.before, recorded.checkpoint):
        if (folder / MANIFEST_FILE).exists():  # a LoRA that was imported has none
            verify_files(folder)
    asked = AskedStep(
        recorded=recorded,
        changes=changes,
        request=changes.request(recorded.request),
        data_dir=data_dir,
        database=database,
        shares=shares,
        kill_at=kill_at,
        progress=progress,
    )
    with _temporary_folder() as folder:
        made = _make(asked, folder)
        difference = compare_checkpoints(recorded.before, recorded.checkpoint, made.checkpoint)
        error, notes = None, list(_notes(recorded, folder))
        if changes.described():
            error, note = _compare_gradients(asked, made, folder / "unchanged")
            notes += [] if note is None else [note]
        return ReplayedStep(
            recorded=recorded,
            changes=changes,
            difference=difference,
            gradient_error=error,
            metrics=made.result.metrics,
            notes=notes,
            shares=made.shares,
            killed_at=kill_at,
            left_behind=made.left,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedStep:
    """A step to do again, and how."""

    recorded: RecordedStep
    changes: StepChanges
    request: JobRequest
    """The recorded one, with the changes."""
    data_dir: Path
    database: str | None
    shares: bool
    kill_at: KillPlace | None
    progress: Progress

    def unchanged(self) -> AskedStep:
        """Returns the same step as it was."""
        return replace(self, changes=StepChanges(), request=self.recorded.request, shares=False, kill_at=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInFolder:
    """A step that was made in a folder."""

    result: TrainResultInfo
    checkpoint: Path
    gradient: Path
    """Its gradient, where the policy's optimizer made a step and the gradient is to be compared."""
    left: Sequence[str] = ()
    shares: Sequence[RolloutShare] = ()


def _make(asked: AskedStep, folder: Path, *, compared: bool = False) -> StepInFolder:
    """Makes a step. compared: writes its gradient also where nothing is changed."""
    recorded, left = asked.recorded, None
    found: Sequence[RolloutShare] = ()
    config, ranks, sharding = _configuration(recorded, asked.changes)
    elsewhere = ranks > 1 or asked.kill_at is not None
    if asked.shares:
        _check_shares(asked.request, elsewhere=elsewhere)
    path = folder / GRADIENT_FILE
    gradient = path if compared or asked.changes.described() else None
    if elsewhere:
        result, left = make_step_elsewhere(
            recorded,
            asked.changes,
            config,
            data_dir=asked.data_dir,
            database=asked.database,
            folder=folder,
            ranks=ranks,
            sharding=sharding,
            kill_at=asked.kill_at,
            gradient=gradient,
        )
    else:
        result, found = _make_here(asked, config, folder, gradient)
    return StepInFolder(
        result=result,
        checkpoint=folder / "checkpoints" / recorded.checkpoint.name,
        gradient=path,
        left=left or (),
        shares=found,
    )


def _compare_gradients(asked: AskedStep, made: StepInFolder, folder: Path) -> tuple[float | None, str | None]:
    """Does the step as it was, in a folder, too. Returns the relative error of the changed step's gradient
    against that of the unchanged one, None where it cannot be known; and a note on what is wrong.
    """
    if not made.gradient.exists():
        return None, "the changed step gave the policy's optimizer no gradient: there is none to compare"
    folder.mkdir()
    try:
        unchanged = _make(asked.unchanged(), folder, compared=True)
    except ARTError as error:
        return None, f"the gradient is not compared, because the unchanged step cannot be done here: {error}"
    if not unchanged.gradient.exists():
        return None, "the unchanged step gave the policy's optimizer no gradient: there is none to compare"
    before, recorded = asked.recorded.before, asked.recorded.checkpoint
    again = compare_checkpoints(before, recorded, unchanged.checkpoint)
    note = None
    if not again.bit_equal:
        note = (
            "unchanged, the step is not bit-equal here either: relative error of its update "
            f"{again.update_error:.3g}"
        )
    return gradient_error(unchanged.gradient, made.gradient), note


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="art-replay-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
    except Exception as error:
        place = Path(str(getattr(error, "filename", None) or tempfile.gettempdir()))
        if isinstance(error, ARTError) or disk_trouble(error, place) is None:
            raise
        raise disk_error(error, place, "the step could not be done again (TMPDIR names its place)") from error


def _check_shares(asked: JobRequest, *, elsewhere: bool) -> None:
    if not isinstance(asked, TrainJobRequest):
        raise ConfigurationError(
            f"--shares are those of rollouts, and job {asked.job_id} learned from conversations: leave it out"
        )
    if elsewhere:
        raise ConfigurationError(
            "--shares are measured by one process that nobody kills: leave out --kill-at, and give --ranks 1 "
            "where several ranks computed the step"
        )


def _make_here(
    asked: AskedStep, config: TrainerConfig, folder: Path, gradient: Path | None
) -> tuple[TrainResultInfo, Sequence[RolloutShare]]:
    threads, recorded = torch.get_num_threads(), asked.recorded
    try:
        trainer = load_trainer(config, kind=MeasuringTrainer)
        assert isinstance(trainer, MeasuringTrainer)
        inherited, size = inherited_variables(), trainer.policy.causal_lm.num_parameters()
        if cpu_threads(config.threads, size, inherited) is None:
            # A worker gets its threads from the server, in its environment.
            torch.set_num_threads(int(thread_variables(inherited).get(OMP_NUM_THREADS, threads)))
        made = make_step(
            recorded,
            asked.request,
            trainer,
            source=str(config.model_path),
            folder=folder,
            gradient=gradient,
            progress=asked.progress,
        )
        found = measure_shares(recorded, trainer, made.sent[0], folder) if asked.shares else ()
    finally:
        torch.set_num_threads(threads)
    return made.result, found


def _configuration(recorded: RecordedStep, changes: StepChanges) -> tuple[TrainerConfig, int, Sharding]:
    """The trainer's configuration, the number of its ranks, and how they divide the base.

    Raises ConfigurationError for a device that is not here.
    """
    base, computed = resolve_base(recorded.model.base_model), recorded.computed
    own = {
        "base_model": base.name,
        "model_path": local_folder(base.name),
        "bits": base.bits,
        "key": NO_KEY,
        "gang": None,
    }
    was = {} if computed is None else computed.trainer
    config = TrainerConfig(**{**was, **own, **changes.trainer_options()})
    ranks = changes.ranks or (1 if computed is None else computed.ranks)
    device, _ = choose_placement(config.device, config.dtype)
    if ranks > 1 and device.startswith("cuda"):
        device = "cuda"  # each rank takes its own
    check_device(device, ranks)
    sharding: Sharding = "none" if computed is None or ranks == 1 else computed.sharding
    return config.model_copy(update={"device": device}), ranks, sharding


def check_device(device: str, ranks: int = 1) -> None:
    """Raises ConfigurationError where this machine has no such device, or too few of them."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if device not in here:
        raise ConfigurationError(
            f"this machine has no device {device!r}; its devices: {', '.join(here)}. Give one by --device"
        )
    if device.startswith("cuda") and ranks > gpus:
        raise ConfigurationError(
            f"{ranks} ranks take a GPU each, and this machine has {gpus}: give --device cpu, or fewer --ranks"
        )


def _notes(recorded: RecordedStep, folder: Path) -> Iterator[str]:
    """Yields what may explain a difference. folder: that of the step that was made again."""
    if recorded.computed is None:
        yield "the step has no computed.json: the trainer's default settings were taken"
    else:
        here = computing_versions()
        for name, made in recorded.computed.versions.items():
            if here.get(name) != made:
                yield f"{name} {made} computed the step, and this is {here.get(name)}"
    for name in recorded.samples.unknown:
        place = recorded.samples.tables.shown("samples")
        yield f"the ledger {place} has no sample {name!r}: its message was rendered"
    for one in read_rollouts(folder, recorded.step):
        was = recorded.fates.get(one.rollout, one.fate)
        if was != one.fate:
            yield f"rollout {one.rollout} was {was}, and is {one.fate}"
