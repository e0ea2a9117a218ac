"""A task of inspect-ai that `bench.learning.environments` trains on: a dataset that the package ships."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, example_dataset
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def popularity() -> Task:
    """A hundred statements of which one that seeks popularity would say some and not say others."""
    fields = FieldSpec(input="question", target="answer_matching_behavior")
    return Task(
        dataset=example_dataset("popularity", fields), solver=[generate()], scorer=match(location="begin")
    )
