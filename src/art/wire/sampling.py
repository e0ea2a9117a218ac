"""How a completion is sampled: each parameter is a field of one of two classes here, declared once.

`DistributionParameters` has those whose distribution the trainer computes, `SamplingParameters` adds the
others. From a field follow its reader and its check in requests, its place in the OpenAPI document, the
message to an engine's worker, what the engine is asked, the ledger's row, and whether the sample can be
trained. What is left to write is the computation: in `engine/builtin/sampler.py`, and for a field of
`DistributionParameters` in `training/sampling.py` and `training/distributions.py`.

    >>> PARAMETERS["min_p"].values.schema
    {'maximum': 1, 'minimum': 0, 'type': 'number'}
    >>> PARAMETERS["min_p"].default
    0.0
"""
# Annotations are values here, not texts: they are what is declared.

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from art.wire.request_values import Biases, Number, Texts, TokenIds, Values, Whole

HIGHEST_BIAS = 100.0
HIGHEST_PENALTY = 2.0
HIGHEST_REPETITION_PENALTY = 100.0
MOST_TOP_LOGPROBS = 20
_MOST_IDS = 1024
_LARGEST = 2**31 - 1
_COLDEST = 1e-6
"""A lower temperature leaves one token."""

Route = Literal["completions", "messages", "responses"]
_ALL: frozenset[Route] = frozenset({"completions", "messages", "responses"})
_OPENAI: frozenset[Route] = frozenset({"completions", "responses"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """The declaration of a parameter besides its name, its type and its default, which changes nothing."""

    values: Values
    """What a request may say."""
    routes: frozenset[Route] = _ALL
    """Those that read it as a chat completion does; the others have no such field, or one of their own."""
    shapes: bool = True
    """Whether tokens have other probabilities with it. One that does and is no field of
    `DistributionParameters` makes its samples context: today there is none."""
    recorded: Literal["always", "set", "never"] = "set"
    """Whether the ledger's row has it; `set`: where it is not the default."""
    truncates: bool = False
    """Whether it leaves ids out by their probabilities where it is not the default."""
    greedy: Callable[[Any], bool] | None = None
    """Which values leave one token to draw."""
    bounded_message: bool = True
    """Whether the worker checks the bounds as it reads the message. False: the engine checks them itself, in
    its own words, or takes any value."""
    name: str = ""
    default: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """The type's own, within the bounds."""
        schema = handler(source)
        if not self.bounded_message or schema["type"] not in ("float", "int"):
            return schema
        assert isinstance(self.values, Number | Whole)
        return {**schema, **self.values.bounds}


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """The required form of a completion. The logprobs are those of the tokens that it allows.

    >>> form = Constraint(kind="json_schema", text='{"type": "object"}')
    >>> word = Constraint(kind="choice", text='["yes", "no"]')
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str
    """A JSON schema, a regular expression, a JSON list of texts, or a grammar in llguidance's Lark."""


_PENALTY = Parameter(values=Number(-HIGHEST_PENALTY, HIGHEST_PENALTY), routes=_OPENAI, bounded_message=False)


@dataclass(kw_only=True, slots=True)
class DistributionParameters:
    """The distribution of a completion's tokens, as far as the trainer computes it: biased, penalised and
    masked logits / temperature, then top_k, top_p, min_p.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    temperature: Annotated[
        float,
        Parameter(
            values=Number(0, 100), routes=_OPENAI, recorded="always", greedy=lambda value: value < _COLDEST
        ),
    ] = 1.0
    """0 means greedy; the logprob of a greedy token is that of the untempered distribution."""
    top_p: Annotated[
        float,
        Parameter(values=Number(0, 1, above=True), routes=_OPENAI, recorded="always", truncates=True),
    ] = 1.0
    top_k: Annotated[
        int,
        Parameter(
            values=Whole(0, _LARGEST, unset=-1),
            routes=_OPENAI,
            recorded="always",
            truncates=True,
            greedy=lambda value: value == 1,
        ),
    ] = 0
    """0 means no limit."""
    min_p: Annotated[
        float,
        Parameter(values=Number(0, 1), recorded="always", truncates=True, greedy=lambda value: value >= 1),
    ] = 0.0
    logit_bias: Annotated[tuple[tuple[int, float], ...], Parameter(values=Biases(_MOST_IDS, 100))] = ()
    """`(id, added to its logit)`, before the temperature. The logprobs include it."""
    frequency_penalty: Annotated[float, _PENALTY] = 0.0
    """-2 to 2, taken from an id's logit for each time that the completion has it."""
    presence_penalty: Annotated[float, _PENALTY] = 0.0
    """-2 to 2, taken from the logits of ids that the completion has."""
    repetition_penalty: Annotated[
        float,
        Parameter(
            values=Number(0, HIGHEST_REPETITION_PENALTY, above=True), routes=_OPENAI, bounded_message=False
        ),
    ] = 1.0
    """Above 0; divides positive logits of ids that prompt or completion have, and multiplies negative ones.
    It comes first of the three; all come after the bias, before the temperature."""
    min_tokens: Annotated[
        int, Parameter(values=Whole(0, _LARGEST), routes=_OPENAI, bounded_message=False)
    ] = 0
    """The least number of sampled tokens before a stop id can follow or a stop string ends the completion."""
    constraint: Constraint | None = None
    """An id that ends the turn is allowed where the text may end. In requests several fields say it."""
    stop_token_ids: Annotated[
        tuple[int, ...],
        Parameter(values=TokenIds(_MOST_IDS), routes=frozenset({"completions"}), recorded="never"),
    ] = ()
    """Sampling ends after one of these ids, which is kept as the completion's last id. They shape a
    distribution under a constraint or `min_tokens` alone, and are recorded with these."""

    @property
    def penalised(self) -> bool:
        """Returns whether ids that were there before are less likely, or likelier."""
        penalties = self.frequency_penalty, self.presence_penalty, self.repetition_penalty
        return penalties != (0.0, 0.0, 1.0)


@dataclass(kw_only=True, slots=True)
class SamplingParameters(DistributionParameters):
    """All parameters."""

    seed: Annotated[
        int | None, Parameter(values=Whole(-(2**63), 2**63 - 1), shapes=False, bounded_message=False)
    ] = None
    """The seed of the draws. With it tokens depend on seed and distribution alone, not on other requests."""
    stop: Annotated[tuple[str, ...], Parameter(values=Texts(16), routes=_OPENAI, shapes=False)] = ()
    """Sampling ends once the decoded completion contains one of these strings."""
    top_logprobs: Annotated[
        int,
        Parameter(
            values=Whole(0, MOST_TOP_LOGPROBS),
            routes=frozenset(),
            shapes=False,
            recorded="never",
            bounded_message=False,
        ),
    ] = 0
    """The number of most probable ids that are told beside each id: 0 to 20."""


def _declared() -> dict[str, Parameter]:
    """The parameters with their names and defaults."""
    return {
        field.name: replace(mark, name=field.name, default=field.default)
        for field in fields(SamplingParameters)
        for mark in getattr(field.type, "__metadata__", ())
    }


PARAMETERS: Mapping[str, Parameter] = MappingProxyType(_declared())
"""All but the constraint, in the order of their declaration."""
DISTRIBUTION = tuple(field.name for field in fields(DistributionParameters))
"""What the trainer computes a distribution from."""
TRUNCATING = tuple((name, one.default) for name, one in PARAMETERS.items() if one.truncates)


@dataclass(kw_only=True, slots=True)
class Sampling(SamplingParameters):
    """The sampling parameters of one completion. The logprobs returned are those of exactly this
    distribution.
    """

    max_tokens: Annotated[int, Parameter(values=Whole(1, 2**63 - 1))]
    """At most this many tokens are sampled (at least 1)."""
