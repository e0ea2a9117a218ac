"""The door for extensions: packages that add something to ART, found by their entry points.

    [project.entry-points."art.extensions"]          in the package's pyproject.toml
    "command.launch" = "my_package.launch:launch"    KIND.NAME = where it is

    command      a verb of `art`: a function with typer's annotations, or a `typer.Typer` for a group
    dialect      routes of the endpoint for completions: an `AgentApi` (`art.server.routes.agent_api`)
    environment  the prefix of environments by name: a class `Adapter(name, **options)` that makes a
                 `NamedEnvironment` (`art.environments.adapters`)
    roles        the prefix of environments with roles: a class `Adapter(name, **options)` that makes a
                 `RolesEnvironment` (`art_extensions.policies.roles`)
    deployment   a provider that `deploy_model` may name: a class that makes a `DeploymentProvider`
                 (`art_extensions.publish.deployment`)
    loss         the term of one token, by the name that `loss_fn=` takes: a `LossExtension`
                 (`art.batch.algorithms.facts`)
    job          a further kind of training job on conversations, by its name: a subclass of `SftJob`
                 (`art.server.jobs.sft_job`), for an `ExtensionJobRequest` (`art.wire.jobs`)
    model        models in another form than a folder of transformers, by the name of the form: a
                 `ModelSource` (`art.engine.base_models`)
    prices       a function that returns the `TokenPricing` of a model's name, or None; it is called between
                 the requests of a step (`art.tracking.prices`)
    provider     who answers judges and generators, by the first part of a model's name: makes an `Llm`
                 (`art.rewards.llm.request`) of the rest of the name and a mapping of options
    publisher    what brings a checkpoint to other programs, by the names `export` and `deploy`: the functions
                 that `art.client.publishing` describes
    plot         the picture of a step's batch, by the name `batch`: has `check_plots` and `plot_batch`
    pages        the pages of the runs under a server's /ui, by the name `runs`: a function that makes
                 `art.server.app.PagesOfRuns`
    migration    files of older releases, when a model is registered: a function of the model's folder
    sink         a tracker that `report_metrics` may name: a class that does what `Sink` says
                 (`art.tracking.sinks.sink`)
    placer       what starts workers on the machines of a cluster, by the name `ray`: a class whose `start`
                 makes a `WorkerPlacer` (`art.server.cluster_settings`)
    storage      copies of a model in a bucket, by the names `push`, `pull` and `sign`: functions
                 (`art.client.storage.bucket_store`)
    store        what several servers share, by its scheme: a `StoreExtension` (`art.server.shared_store`)
    sandbox      where rules check a model's texts, by the name `processes`: a class that makes a
                 `Sandbox` (`art_extensions.sandbox.limits`)
    installation what can be said of this installation, by the name `findings`: a function of a folder that
                 yields objects with `level`, `subject` and `what`, for bug reports
    watch        what looks at a run while it trains: a class whose `see(folder, row)` is called with the
                 model's folder and each new row of its history
    reward       a name of `art.rewards`: a `Reward` (`art.rewards.reward`), or what belongs to one
    runtime      a program in an environment of its own: a `ProgramRuntime`, for `art runtime install NAME`
    tuner        what changes a pipeline's numbers while it trains, by the name `pipeline`: a function of a
                 `PipelineTrainer`, its model and its keywords that returns an `OnStep`, or None
    engine       what samples, by the name that `engine=` takes: an `EngineKind` (`art.engine.registry`)
    pass         the builtin engine's forward pass on a kind of device, by its name: a subclass of `Decoder`

ART's own extensions, `art_extensions`, come through the same door. The core imports none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from art.errors import ConfigurationError, MissingExtraError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = logging.getLogger(__name__)

GROUP = "art.extensions"
COMMAND = "command"
DEPLOYMENT = "deployment"
DIALECT = "dialect"
ENGINE = "engine"
ENVIRONMENT = "environment"
INSTALLATION = "installation"
JOB = "job"
LORA = "lora"
LOSS = "loss"
MIGRATION = "migration"
MODEL = "model"
OPTIMIZER = "optimizer"
PAGES = "pages"
PASS = "pass"
PLACER = "placer"
PLOT = "plot"
PRICES = "prices"
PROVIDER = "provider"
PUBLISHER = "publisher"
REWARD = "reward"
ROLES = "roles"
RUNTIME = "runtime"
SANDBOX = "sandbox"
SINK = "sink"
STORAGE = "storage"
STORE = "store"
TUNER = "tuner"
WATCH = "watch"
Tell = Callable[[str], object]
"""Is called with each line about the progress."""
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
"""The project file. It lies beside the package in a source tree, whether or not that is installed."""


class ProgramRuntime(Protocol):
    """A program that runs in an environment of its own, apart from ART's."""

    def install(self, folder: Path | None, device: str, clouds: Sequence[str], tell: Tell) -> str:
        """Creates the environment, and returns a sentence that says what is where.

        folder: None is the default one. device: auto, cpu or cuda. clouds: those that are asked for. A
        program leaves out what it has no use for. A complete installation is not changed. Raises: ARTError.
        """
        ...

    def folder(self) -> Path:
        """Returns the default folder."""
        ...

    def describe(self, folder: Path | None) -> Sequence[str]:
        """Returns lines that say what is installed. Raises: ARTError where nothing usable is."""
        ...


def extension_points(kind: str) -> Mapping[str, EntryPoint]:
    """Returns the entry points of a kind by their names. Nothing is loaded."""
    named = {point.name.partition("."): point for point in _all_points()}
    return {name: point for (its_kind, _, name), point in sorted(named.items()) if its_kind == kind}


@lru_cache(maxsize=1)
def _all_points() -> list[EntryPoint]:
    from importlib.metadata import EntryPoint, entry_points

    found = [*entry_points(group=GROUP)]
    if _PROJECT.is_file():
        import tomllib

        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8")).get("project", {})
        own = project.get("entry-points", {}).get(GROUP, {})
        found += [EntryPoint(name, value, GROUP) for name, value in own.items()]
    return found


def load_extension(kind: str, name: str) -> Any:
    """Returns what an extension gives.

    Raises: ConfigurationError where it is missing or cannot be loaded, MissingExtraError.
    """
    points = extension_points(kind)
    if name not in points:
        hint = did_you_mean(name, points) or f"installed: {', '.join(points) or 'none'}"
        raise ConfigurationError(f"no extension gives the {kind} {name!r}: {hint}")
    point = points[name]
    try:
        return point.load()
    except MissingExtraError:
        raise
    except (ImportError, AttributeError) as error:
        distribution = point.dist.name if point.dist is not None else point.module
        raise ConfigurationError(
            f"the {kind} {name!r} is in {point.value} of {distribution}, which cannot be loaded: {error}. "
            f"Install {distribution} again"
        ) from error


def load_extensions(kind: str) -> dict[str, Any]:
    """Returns all of a kind that can be loaded, by their names. The others are warnings, once."""
    found = {}
    for name in extension_points(kind):
        try:
            found[name] = load_extension(kind, name)
        except ConfigurationError as error:
            _warn_once(str(error))
    return found


@lru_cache(maxsize=1024)
def _warn_once(problem: str) -> None:
    _log.warning("%s", problem)
