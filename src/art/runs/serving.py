"""Where a run lies, and who serves the model that learns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.backend import Backend
    from art.llm.budget import Budget
    from art.llm.cache import AnswerCache
    from art.model import TrainableModel
    from art.runs.course import Tell

BUDGET = "budget.sqlite3"


def root_of(path: str | Path | None) -> Path:
    """Of all runs and answers: None is ./.art."""
    return Path(path) if path is not None else Path.cwd() / ".art"


def cache_in(root: Path) -> AnswerCache:
    """Where the answers of judges and generators are kept, unless another place is given."""
    from art.llm.cache import DEFAULT_PATH, AnswerCache

    return AnswerCache(root / DEFAULT_PATH.name)


def keep_budget(budget: Budget | None, folder: Path, tell: Tell) -> None:
    """What is spent is kept in the run's folder: a run that goes on has what is left of it.

    A budget that has a file of its own stays there. Raises ConfigurationError.
    """
    if budget is None:
        return
    budget.keep(folder / BUDGET)
    spent = budget.spent
    if spent.calls:
        used = ", ".join(
            f"{getattr(spent, name):g} of {limit:g} {name}"
            for name, limit in budget.limits.items()
            if limit is not None
        )
        tell(f"of the budget are spent already: {used}")


def model_of(root: Path, name: str, project: str, base_model: str) -> TrainableModel[Any, Any]:
    """The model that a run trains. Raises ConfigurationError for names that are none."""
    from art.model import TrainableModel
    from art.storage.location import model_folder

    model_folder(root, project, name)
    return TrainableModel(name=name, project=project, base_model=base_model, base_path=str(root))


@asynccontextmanager
async def served(model: TrainableModel[Any, Any], backend: Backend | None, root: Path) -> AsyncIterator[None]:
    """The model is registered; a backend of our own, under `root`, lives as long as the block.

    backend: None for the one the model is registered with already, or else one of our own.
    """
    async with AsyncExitStack() as stack:
        if backend is not None:
            await model.register(backend)
        elif model._backend is None:
            from art.local.backend import LocalBackend

            await model.register(await stack.enter_async_context(LocalBackend(path=str(root))))
        yield
