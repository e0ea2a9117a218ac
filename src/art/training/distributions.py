"""The distributions that the entries of a batch were drawn from, as the targets of a micro-batch.

Targets are merged by token, and two samples may have drawn one token from different distributions: then it
is a target twice. The masks that constrained completions were drawn under are found again by following their
ids, and so is what a penalty was for.

Letters: E = loss entries, N = targets, H = different ways to draw, K = recorded sets or different masks, J =
the ids of a set or of a text, B = bytes of a mask, one bit for each id of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from art.batch.batch_types import CandidateSets, IntArray, LossEntries, TokenTree
from art.engine.constraints import Bits, Grammars, Guide
from art.engine.protocol import Constraint
from art.errors import RequestError, TokenMismatchError
from art.training.packing.runs import MicroBatch
from art.training.sampling import PenalisedText, Recorded, SamplingRows, Shapes, TargetBias
from art.wire.training import MaskedBy, SamplingSpec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Masks:
    """`bits_KB[mask_E[e]]` are the ids among which entry e was drawn; -1: all.

    Equal masks are kept once: within a text of JSON nearly all are.
    """

    mask_E: npt.NDArray[np.int64]
    bits_KB: npt.NDArray[np.uint8]


def follow_constraints(
    tree: TokenTree,
    entries: LossEntries,
    specs: Sequence[SamplingSpec],
    grammars: Mapping[MaskedBy, Grammars],
    vocabulary: int,
) -> Masks | None:
    """The masks of a batch; None where no distribution has a constraint or a least length.

    Raises TokenMismatchError for an id that its constraint does not allow, naming rollout and place.
    """
    constrained = [n for n, spec in enumerate(specs) if spec.constraint is not None or spec.min_tokens]
    rows = np.flatnonzero(np.isin(entries.sampling_E, constrained))
    if not len(rows):
        return None
    places = _places(entries)
    mask_E = np.full(len(entries), -1, np.int64)
    numbers: dict[bytes, int] = {}
    walk = _Walk(tree, entries, specs, grammars)
    for entry in rows.tolist():
        spec = specs[int(entries.sampling_E[entry])]
        if spec.constraint is None:
            if int(places[entry]) >= spec.min_tokens or not spec.stop_token_ids:
                continue
            bits = _all_but(spec.stop_token_ids, vocabulary)
        else:
            try:
                bits = walk.step(entry).allowed(vocabulary)
            except RequestError as error:
                raise walk.broken(entry, str(error)) from error
        token = int(tree.tokens_T[entries.token_E[entry]])
        if not bits[token >> 3] >> (token & 7) & 1:
            raise walk.broken(entry, f"id {token} is not among those that it allows")
        mask_E[entry] = numbers.setdefault(bits.tobytes(), len(numbers))
    if not numbers:
        return None
    table = np.frombuffer(b"".join(numbers), np.uint8).reshape(len(numbers), -1)
    return Masks(mask_E=mask_E, bits_KB=table)


def _places(entries: LossEntries) -> IntArray:
    """The places of the entries in their completions."""
    if entries.place_E is None:
        raise TokenMismatchError("A distribution depends on the completion, and entry_place_E is missing.")
    return entries.place_E


def _all_but(ids: Sequence[int], vocabulary: int) -> Bits:
    """A bit for each id of the vocabulary: 0 for these."""
    allowed = np.ones(vocabulary, bool)
    allowed[[one for one in ids if one < vocabulary]] = False
    return np.packbits(allowed, bitorder="little")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CompletionText:
    """The ids of a prompt and its completion, and what they were penalised by."""

    ids_J: npt.NDArray[np.int64]
    prompt: int
    spec: SamplingSpec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PenalisedEntries:
    """`texts[text_E[e]]` is the text that entry e continues at `place_E[e]`; -1: its logits were not
    penalised, and its place is -1.
    """

    text_E: npt.NDArray[np.int64]
    place_E: npt.NDArray[np.int64]
    texts: Sequence[CompletionText]


def follow_penalties(
    tree: TokenTree, entries: LossEntries, specs: Sequence[SamplingSpec]
) -> PenalisedEntries | None:
    """The texts that penalties of a batch were for; None where no distribution has any.

    Raises TokenMismatchError where entries of one completion do not follow each other.
    """
    penalised = [number for number, spec in enumerate(specs) if spec.penalised]
    rows = np.flatnonzero(np.isin(entries.sampling_E, penalised))
    if not len(rows):
        return None
    places = _places(entries)
    text_E, place_E = np.full(len(entries), -1, np.int64), np.full(len(entries), -1, np.int64)
    place_E[rows] = places[rows]
    texts: list[CompletionText] = []
    for run in np.split(rows, np.flatnonzero((np.diff(rows) != 1) | (np.diff(places[rows]) != 1)) + 1):
        path = _path(tree, int(entries.token_E[run[-1]]))
        prompt = len(path) - 1 - int(places[run[-1]])
        if not np.array_equal(path[prompt + places[run]], entries.token_E[run]):
            raise TokenMismatchError(
                f"A completion of rollout number {int(entries.sequence_E[run[0]])} cannot be trained with "
                "its penalties: its ids do not follow each other in the batch."
            )
        text_E[run] = len(texts)
        spec = specs[int(entries.sampling_E[run[0]])]
        texts.append(CompletionText(ids_J=tree.tokens_T[path].astype(np.int64), prompt=prompt, spec=spec))
    return PenalisedEntries(text_E=text_E, place_E=place_E, texts=texts)


def _path(tree: TokenTree, node: int) -> npt.NDArray[np.int64]:
    """The nodes from the root to a node."""
    found = []
    while node >= 0:
        found.append(node)
        node = int(tree.parent_T[node])
    return np.array(found[::-1], np.int64)


class _Walk:
    """Follows completion after completion: their entries lie together, in the order of sampling."""

    def __init__(
        self,
        tree: TokenTree,
        entries: LossEntries,
        specs: Sequence[SamplingSpec],
        grammars: Mapping[MaskedBy, Grammars],
    ) -> None:
        self._tree, self._entries, self._specs, self._grammars = tree, entries, specs, grammars
        assert entries.place_E is not None
        self._place_E = entries.place_E
        self._guide: Guide | None = None
        self._before = -1

    def step(self, entry: int) -> Guide:
        """The guide of the entry's completion, moved on to the entry."""
        place, node = int(self._place_E[entry]), int(self._entries.token_E[entry])
        if place == 0:
            spec = self._specs[int(self._entries.sampling_E[entry])]
            assert spec.constraint is not None
            constraint = Constraint(kind=spec.constraint.kind, text=spec.constraint.text)
            self._guide = self._grammars[spec.masked_by].open(constraint, spec.stop_token_ids)
        elif self._guide is None or not self._follows(entry, place, node):
            raise self.broken(entry, "the ids before it are not in the batch")
        else:
            self._guide.advance(int(self._tree.tokens_T[self._tree.parent_T[node]]))
        self._before = entry
        return self._guide

    def _follows(self, entry: int, place: int, node: int) -> bool:
        before, entries = self._before, self._entries
        return (
            entry == before + 1
            and place == int(self._place_E[before]) + 1
            and int(self._tree.parent_T[node]) == int(entries.token_E[before])
            and entries.sampling_E[entry] == entries.sampling_E[before]
        )

    def broken(self, entry: int, problem: str) -> TokenMismatchError:
        return TokenMismatchError(
            f"Sampled id {int(self._place_E[entry])} of a completion of rollout number "
            f"{int(self._entries.sequence_E[entry])} cannot be trained under its constraint: {problem}."
        )


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Distributions:
    """`specs[sampling_E[e]]` is the distribution that entry e of the batch was drawn from."""

    specs: Sequence[SamplingSpec]
    sampling_E: npt.NDArray[np.int32]
    masks: Masks | None = None
    """The masks of the ids among which constrained entries were drawn."""
    penalised: PenalisedEntries | None = None
    candidates_E: npt.NDArray[np.int32] | None = None
    """Number of the recorded set of each entry, -1 where there is none; None: no entry has one."""
    candidates: CandidateSets | None = None

    @property
    def plain(self) -> bool:
        """Every entry was drawn from the model's own distribution."""
        return all(self.specs[number] == SamplingSpec() for number in np.unique(self.sampling_E).tolist())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Targets:
    """The tokens and distributions that the output layer must compute."""

    predictor_N: Ints
    id_N: Ints
    entry_target_E: Ints
    sampling: SamplingRows | None


def targets_of(micro: MicroBatch, drawn: Distributions | None, *, device: torch.device | str) -> Targets:
    """The targets of a micro-batch, one for each token and distribution."""
    if drawn is None or drawn.plain:
        return Targets(
            predictor_N=micro.target_predictor_N,
            id_N=micro.target_id_N,
            entry_target_E=micro.entry_target_E,
            sampling=None,
        )
    none_E = np.full(len(micro.entry_E), -1)
    mask_E = none_E if drawn.masks is None else drawn.masks.mask_E[micro.entry_E]
    set_E = none_E if drawn.candidates_E is None else drawn.candidates_E[micro.entry_E].astype(np.int64)
    text_E = none_E if drawn.penalised is None else drawn.penalised.text_E[micro.entry_E]
    place_E = none_E if drawn.penalised is None else drawn.penalised.place_E[micro.entry_E]
    # A recorded set says also what its constraint allowed.
    kinds = [drawn.sampling_E[micro.entry_E], np.where(set_E >= 0, -1, mask_E), set_E, text_E, place_E]
    kind_H5, kind_E = np.unique(np.stack(kinds, axis=1), axis=0, return_inverse=True)
    key_E = micro.entry_target_E * len(kind_H5) + kind_E.reshape(-1)
    key_N, entry_target_E = np.unique(key_E, return_inverse=True)  # sorted, so predictors stay in order
    target_N, kind_N = np.divmod(key_N, len(kind_H5))
    return Targets(
        predictor_N=micro.target_predictor_N[target_N],
        id_N=micro.target_id_N[target_N],
        entry_target_E=entry_target_E,
        sampling=_rows(drawn, kind_H5[kind_N], device),
    )


def _rows(drawn: Distributions, kind_N5: Ints, device: torch.device | str) -> SamplingRows:
    spec_N, _, set_N, _, _ = kind_N5.T
    specs = [drawn.specs[number] for number in spec_N.tolist()]
    computed_N = torch.as_tensor(set_N < 0, device=device)  # which ids are kept; else recorded

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return SamplingRows.make(
        temperature_N=column([spec.temperature for spec in specs]),
        top_k_N=torch.tensor([spec.top_k for spec in specs], device=device) * computed_N,
        top_p_N=column([spec.top_p for spec in specs]).where(computed_N, 1.0),
        min_p_N=column([spec.min_p for spec in specs]) * computed_N,
        shapes=_shapes(drawn, kind_N5, device),
        recorded=_recorded(drawn, set_N, device),
    )


def _recorded(drawn: Distributions, set_N: Ints, device: torch.device | str) -> Recorded | None:
    """The recorded sets that these targets use; only those go to the device."""
    if drawn.candidates is None or not (set_N >= 0).any():
        return None
    end_K = drawn.candidates.end_K.astype(np.int64)
    size_K = np.diff(end_K, prepend=0)
    used, number_N = np.unique(set_N[set_N >= 0], return_inverse=True)
    set_of_N = np.full(len(set_N), -1)
    set_of_N[set_N >= 0] = number_N.reshape(-1)
    start_K = (end_K - size_K)[used]
    return Recorded(
        set_N=torch.as_tensor(set_of_N, device=device),
        start_K=torch.as_tensor(np.cumsum(size_K[used]) - size_K[used], device=device),
        size_K=torch.as_tensor(size_K[used], device=device),
        id_J=torch.as_tensor(
            drawn.candidates.id_J[_ranges(start_K, size_K[used])].astype(np.int64), device=device
        ),
    )


def _ranges(start_K: Ints, size_K: Ints) -> Ints:
    """start, start + 1, ... of each range, one range after the other."""
    skipped_K = start_K - (np.cumsum(size_K) - size_K)
    return np.arange(int(size_K.sum())) + np.repeat(skipped_K, size_K)


def _shapes(drawn: Distributions, kind_N5: Ints, device: torch.device | str) -> Shapes | None:
    """Biases, penalties and masks of the targets; only those that they use go to the device."""
    spec_N, mask_N, _, text_N, place_N = kind_N5.T
    used = np.unique(spec_N)
    biased = [number for number in used.tolist() if drawn.specs[number].logit_bias]
    if not biased and not (mask_N >= 0).any() and not (text_N >= 0).any():
        return None
    continued, number_N = np.unique(text_N[text_N >= 0], return_inverse=True)
    text_of_N = np.full(len(text_N), -1)
    text_of_N[text_N >= 0] = number_N.reshape(-1)
    numbers = np.full(len(drawn.specs), -1)
    numbers[biased] = np.arange(len(biased))
    kinds, kind_N = np.unique(mask_N, return_inverse=True)
    bits = np.zeros((1, 1), np.uint8) if drawn.masks is None else drawn.masks.bits_KB[kinds]
    return Shapes(
        bias_N=torch.as_tensor(numbers[spec_N], device=device),
        mask_N=torch.as_tensor(np.where(mask_N >= 0, kind_N, -1), device=device),
        biases=tuple(_bias(drawn.specs[number], device) for number in biased),
        bits_KB=torch.as_tensor(bits, device=device),
        text_N=torch.as_tensor(text_of_N, device=device),
        place_N=torch.as_tensor(np.ascontiguousarray(place_N), device=device),
        texts=tuple(_text(drawn.penalised.texts[number], device) for number in continued.tolist())
        if drawn.penalised is not None
        else (),
    )


def _text(text: CompletionText, device: torch.device | str) -> PenalisedText:
    return PenalisedText(
        ids_J=torch.as_tensor(text.ids_J, device=device),
        prompt=text.prompt,
        frequency=text.spec.frequency_penalty,
        presence=text.spec.presence_penalty,
        repetition=text.spec.repetition_penalty,
    )


def _bias(spec: SamplingSpec, device: torch.device | str) -> TargetBias:
    ids, values = zip(*spec.logit_bias, strict=True)
    return TargetBias(
        ids=torch.tensor(ids, device=device), values=torch.tensor(values, dtype=torch.float32, device=device)
    )
