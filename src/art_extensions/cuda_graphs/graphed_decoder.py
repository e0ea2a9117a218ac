"""Decoding steps on a GPU as CUDA graphs. A step launches some thousand short kernels, which takes Python
longer than they take the GPU; a graph launches them all at once.

A graph has fixed addresses and sizes. So the step's inputs are copied to where it reads them, requests are
filled up to one of a few numbers by repeating the last one, and as many keys are looked at as a multiple of
`KEYS`: the mask hides the rest. What is repeated writes the same keys and values to the same place.

One adapter, or none, and one new token a request: other steps run as they are. A graph is recorded when its
shape is met for the second time. All go when an adapter goes, and when the cache moves.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from art.engine.builtin.cache import RowCache
from art.engine.builtin.decoder import Decoder, Product
from art.engine.builtin.grouped_lora import Turns
from art.engine.builtin.step_batch import Attends, DecodePart, LayerCall, PackedAttention

LOG = logging.getLogger(__name__)

KEYS = 256
"""Numbers of keys are multiples of so many."""
MOST_GRAPHS = 48
"""Graphs that are kept: those used last."""
MOST_MET = 1024
"""Shapes that are remembered without a graph."""
TOLERANCE = 0.02
"""The first graph may differ from the step itself by so much of the largest number: rounding of 16 bits."""


class Replay(NamedTuple):
    """A recorded computation. run: computes again. result: where the result then lies."""

    run: Callable[[], object]
    result: Tensor


class GraphRecorder(Protocol):
    """Records a computation."""

    def record(self, compute: Callable[[], Tensor]) -> Replay:
        """Returns it recorded, computed once. Raises RuntimeError where that cannot be."""
        ...


class CudaRecorder:
    """Records CUDA graphs, which share the memory of what they compute in between."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, compute: Callable[[], Tensor]) -> Replay:
        """See `GraphRecorder`."""
        if not self._graphs:  # a pool ends with the last graph in it
            self._pool = torch.cuda.graph_pool_handle()
        graph, outside = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            compute()  # what is chosen or loaded at the first call is not part of a graph
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = compute()
            finally:
                graph.capture_end()
        outside.wait_stream(self._stream)
        self._graphs.add(graph)
        graph.replay()
        return Replay(graph.replay, result)


class StepShape(NamedTuple):
    """The sizes and addresses that are fixed in a graph."""

    products: int
    pairs: int
    """Identities of the products and of the adapter's matrices."""
    tokens: int
    keys: int
    in_place: bool
    """The requests are the cache's first rows, whose keys are read where they lie."""


@dataclass(frozen=True, slots=True)
class GraphedStep:
    """A graph with its inputs."""

    inputs: Tensor
    """[4, tokens] ids, positions, slots of the cache, rows."""
    replay: Replay

    def run(self, inputs: Tensor) -> Tensor:
        """Returns the hidden states [tokens, C], which the next run overwrites."""
        self.inputs.copy_(inputs)
        self.replay.run()
        return self.replay.result


def filled_up(tokens: int) -> int:
    """Returns the next number of requests that graphs are for: four between a power of two and the next.

    >>> [filled_up(tokens) for tokens in (1, 5, 9, 33, 100, 129)]
    [1, 5, 10, 40, 112, 160]
    """
    step = max(1, (1 << (tokens.bit_length() - 1)) // 4)
    return -(-tokens // step) * step


def decoding_part(attention: Attends) -> tuple[DecodePart, RowCache, Tensor] | None:
    """Returns a decoding step's part, its cache and its slots; None for other steps."""
    if not isinstance(attention, PackedAttention) or len(attention.parts) != 1:
        return None
    (part,) = attention.parts
    if not isinstance(part, DecodePart) or attention.cache is None or attention.slot is None:
        return None
    return part, attention.cache, attention.slot


class GraphedDecoder(Decoder):
    """A `Decoder` whose decoding steps are recorded. Where that fails, it goes on without, with a warning."""

    def __init__(
        self, module: Any, calls: Sequence[LayerCall], merge_bytes: int, recorder: GraphRecorder | None = None
    ) -> None:
        super().__init__(module, calls, merge_bytes)
        self._records = self.rotates_alike  # other rotations look at the positions
        self._recorder = recorder
        self._checked = False
        self._graphs: OrderedDict[StepShape, GraphedStep] = OrderedDict()
        self._met: OrderedDict[StepShape, None] = OrderedDict()
        self._cache: weakref.ref[Tensor] | None = None
        """The first layer's keys, which live as long as the cache stays where it is."""

    def remove(self, number: int) -> None:
        """The adapter goes: nothing of it is kept, and no graph."""
        self.forget_graphs()
        super().remove(number)

    def forget_graphs(self, _: object = None) -> None:
        """Frees all graphs."""
        self._graphs.clear()
        self._met.clear()

    def _through_layers(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        products: Sequence[Product],
        turns: Turns | None,
        attention: Attends,
    ) -> Tensor:
        found = decoding_part(attention) if self._records and (turns is None or turns.is_whole) else None
        if found is None:
            return super()._through_layers(ids_T, positions_T, products, turns, attention)
        part, cache, slot_T = found
        shape = self._shape_of(part, cache, products, turns)
        padding = shape.tokens - part.tokens
        inputs = torch.stack([ids_T, positions_T, slot_T, part.rows])
        if padding:
            inputs = torch.cat([inputs, inputs[:, -1:].expand(-1, padding)], 1)
        step = self._graphs.get(shape)
        if step is not None:
            self._graphs.move_to_end(shape)
            return step.run(inputs)[: part.tokens]
        hidden_TC = super()._through_layers(ids_T, positions_T, products, turns, attention)
        if self._met_before(shape):
            self._record(shape, inputs, (products, turns, cache), hidden_TC)
        return hidden_TC

    def _shape_of(
        self, part: DecodePart, cache: RowCache, products: Sequence[Product], turns: Turns | None
    ) -> StepShape:
        if self._cache is None or self._cache() is not cache.keys[0]:
            self.forget_graphs()
            self._cache = weakref.ref(cache.keys[0], self.forget_graphs)
        tokens = filled_up(part.tokens)
        return StepShape(
            products=id(products),
            pairs=0 if turns is None else id(turns.pairs),
            tokens=tokens,
            keys=min(-(-part.keys // KEYS) * KEYS, cache.capacity),
            in_place=part.in_order and tokens == part.tokens,
        )

    def _met_before(self, shape: StepShape) -> bool:
        if shape in self._met:
            del self._met[shape]
            return True
        self._met[shape] = None
        if len(self._met) > MOST_MET:
            self._met.popitem(last=False)
        return False

    def _record(
        self,
        shape: StepShape,
        inputs: Tensor,
        fixed: tuple[Sequence[Product], Turns | None, RowCache],
        hidden_TC: Tensor,
    ) -> None:
        """Keeps a graph of the step. hidden_TC: the step's own result."""
        own = inputs.clone()
        ids_T, positions_T, slot_T, rows_T = own.unbind()
        products, turns, cache = fixed
        if turns is not None:
            turns = Turns(turns.pairs, shape.tokens)
        through = super()._through_layers

        def compute() -> Tensor:
            part = DecodePart(
                tokens=shape.tokens,
                rows=rows_T,
                position=positions_T,
                keys=shape.keys,
                span=shape.tokens if shape.in_place else None,
                in_order=shape.in_place,
            )
            return through(ids_T, positions_T, products, turns, PackedAttention([part], cache, slot_T))

        try:
            if self._recorder is None:
                self._recorder = CudaRecorder()
            step = GraphedStep(own, self._recorder.record(compute))
            self._check(step, hidden_TC)
        except RuntimeError as error:
            self._records = False
            self.forget_graphs()
            LOG.warning("Decoding goes on without CUDA graphs, which is slower: %s", error)
            return
        self._graphs[shape] = step
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)

    def _check(self, step: GraphedStep, hidden_TC: Tensor) -> None:
        """Raises RuntimeError where the first graph computes something else."""
        if self._checked:
            return
        got = step.replay.result[: len(hidden_TC)].float()
        difference = float((got - hidden_TC.float()).abs().max() / hidden_TC.float().abs().max())
        if not difference <= TOLERANCE:
            raise RuntimeError(f"a graph differs from its step by {difference:.1e} of the largest number")
        self._checked = True
