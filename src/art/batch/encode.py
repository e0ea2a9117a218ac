"""A batch and its request <-> one safetensors body (the arrays of `art.wire.training`)."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from art.batch.batch_types import Batch, CandidateSets, IntArray, LossEntries, TokenTree
from art.errors import TokenMismatchError
from art.wire.samples import image_name
from art.wire.training import TrainRequest

_NAMES = {
    "tokens_T": np.int32,
    "parent_T": np.int32,
    "end_T": np.int32,
    "depth_T": np.int32,
    "entry_token_E": np.int32,
    "entry_logprob_E": np.float32,
    "entry_advantage_E": np.float32,
    "entry_weight_E": np.float32,
    "entry_sequence_E": np.int32,
    "entry_sampling_E": np.int32,
}
_TEACHER = "entry_teacher_E"
"""There only when a server gave the teacher's logprobs."""
_PLACE = "entry_place_E"
"""There only where a distribution depends on it."""
_CANDIDATES, _ENDS, _IDS = "entry_candidates_E", "candidates_end_K", "candidates_id_J"
"""All there or none: only where the sampler recorded any."""
_IMAGES, _IMAGE_ENDS = "image_bytes_I", "image_end_M"
"""Both there or none: the files of the images that negative ids stand for, and where each ends."""
_OPTIONAL = {
    _TEACHER: np.float32,
    _PLACE: np.int32,
    _CANDIDATES: np.int32,
    _ENDS: np.int32,
    _IDS: np.int32,
    _IMAGES: np.uint8,
    _IMAGE_ENDS: np.int32,
}


def encode_batch(batch: Batch, request: TrainRequest) -> bytes:
    """The body of `POST /train`."""
    return encode_arrays(batch.tree, batch.entries, request)


def encode_arrays(tree: TokenTree, entries: LossEntries, request: TrainRequest) -> bytes:
    """Writes what `decode_batch` reads."""
    arrays = {
        "tokens_T": tree.tokens_T,
        "parent_T": tree.parent_T,
        "end_T": tree.end_T,
        "depth_T": tree.depth_T,
        "entry_token_E": entries.token_E,
        "entry_logprob_E": entries.logprob_E,
        "entry_advantage_E": entries.advantage_E,
        "entry_weight_E": entries.weight_E,
        "entry_sequence_E": entries.sequence_E,
        "entry_sampling_E": entries.sampling_E,
    }
    exact = {name: np.ascontiguousarray(array, _NAMES[name]) for name, array in arrays.items()}
    sets = entries.candidates
    optional = {
        _TEACHER: entries.teacher_E,
        _PLACE: entries.place_E,
        _CANDIDATES: entries.candidates_E,
        _ENDS: None if sets is None else sets.end_K,
        _IDS: None if sets is None else sets.id_J,
        **_image_arrays(tree.images),
    }
    for name, column in optional.items():
        if column is not None:
            exact[name] = np.ascontiguousarray(column, _OPTIONAL[name])
    return bytes(save_arrays(exact, metadata={"request": request.model_dump_json()}))


def decode_batch(body: bytes) -> tuple[TokenTree, LossEntries, TrainRequest]:
    """Decodes and checks the output of `encode_batch`: the tree is valid, and every entry has a predictor.

    Raises TokenMismatchError.
    """
    try:
        arrays = load_arrays(body)
        request = TrainRequest.model_validate_json(_metadata(body)["request"])
    except (SafetensorError, ValidationError, ValueError, KeyError) as error:
        raise TokenMismatchError(f"The batch cannot be read: {error}") from error
    if set(arrays) - set(_OPTIONAL) != set(_NAMES):
        raise TokenMismatchError(f"The batch holds {sorted(arrays)}; it must hold {sorted(_NAMES)}.")
    for name, dtype in {**_NAMES, **_OPTIONAL}.items():
        if name in arrays and (arrays[name].dtype != dtype or arrays[name].ndim != 1):
            raise TokenMismatchError(
                f"{name} is {arrays[name].dtype}{list(arrays[name].shape)}, not one row of {dtype}."
            )
    present = {name for name in (_CANDIDATES, _ENDS, _IDS) if name in arrays}
    if present and len(present) < 3:
        raise TokenMismatchError(f"The batch holds {sorted(present)} without the rest of the candidates.")
    tree = TokenTree(
        **{name: arrays[name] for name in ("tokens_T", "parent_T", "end_T", "depth_T")},
        images=_read_images(arrays),
    )
    entries = LossEntries(
        token_E=arrays["entry_token_E"],
        logprob_E=arrays["entry_logprob_E"],
        advantage_E=arrays["entry_advantage_E"],
        weight_E=arrays["entry_weight_E"],
        sequence_E=arrays["entry_sequence_E"],
        sampling_E=arrays["entry_sampling_E"],
        teacher_E=arrays.get(_TEACHER),
        place_E=arrays.get(_PLACE),
        candidates_E=arrays.get(_CANDIDATES),
        candidates=CandidateSets(end_K=arrays[_ENDS], id_J=arrays[_IDS]) if present else None,
    )
    check_tree(tree)
    check_entries(tree, entries, len(request.sampling))
    return tree, entries, request


def _image_arrays(images: Mapping[str, bytes]) -> dict[str, npt.NDArray[np.generic]]:
    if not images:
        return {}
    ends = np.cumsum([len(file) for file in images.values()])
    return {_IMAGES: np.frombuffer(b"".join(images.values()), np.uint8), _IMAGE_ENDS: ends}


def _read_images(arrays: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, bytes]:
    """The files by their names, which are made anew from what they hold."""
    if (_IMAGES in arrays) != (_IMAGE_ENDS in arrays):
        raise TokenMismatchError(f"The batch holds one of {_IMAGES} and {_IMAGE_ENDS} without the other.")
    if _IMAGES not in arrays:
        return {}
    joined, ends = arrays[_IMAGES].tobytes(), arrays[_IMAGE_ENDS].tolist()
    starts = [0, *ends[:-1]]
    if starts != sorted(starts) or not ends or ends[-1] != len(joined) or min(starts) < 0:
        raise TokenMismatchError(f"{_IMAGE_ENDS} of the batch does not cut {len(joined)} bytes into files.")
    files = [joined[start:end] for start, end in zip(starts, ends, strict=True)]
    return {image_name(file): file for file in files}


def check_tree(tree: TokenTree) -> None:
    """Raise TokenMismatchError unless the arrays are a depth-first token tree."""
    size = len(tree)
    if not len(tree.parent_T) == len(tree.end_T) == len(tree.depth_T) == size:
        raise TokenMismatchError("tokens_T, parent_T, end_T and depth_T differ in length.")
    index_T = np.arange(size)
    parent_T, end_T = tree.parent_T, tree.end_T
    _require_all((parent_T >= -1) & (parent_T < index_T), "parent_T", "points before the node or to -1")
    _require_all((end_T > index_T) & (end_T <= size), "end_T", "lies after the node and within the tree")
    inner_T = parent_T >= 0
    _require_all(
        tree.depth_T == np.where(inner_T, tree.depth_T[parent_T] + 1, 0),
        "depth_T",
        "is the parent's plus one",
    )
    _require_all(~inner_T | (end_T <= end_T[parent_T]), "end_T", "lies within the parent's")
    # In depth-first order a node is the first child of the node before it, or follows a finished subtree.
    follows_T = index_T - 1
    _require_all(
        (parent_T == follows_T) | (end_T[follows_T] == index_T), "parent_T", "is in depth-first order"
    )
    # The subtree sizes follow from the parents alone.
    _require_all(end_T == _ends(parent_T), "end_T", "is the index after the last descendant")


def check_entries(tree: TokenTree, entries: LossEntries, distributions: int = 1) -> None:
    """Raise TokenMismatchError unless every entry is a node with a parent, its numbers are finite, and its
    sampling distribution is one of the `distributions`.
    """
    token_E = entries.token_E
    columns = [
        entries.logprob_E,
        entries.advantage_E,
        entries.weight_E,
        entries.sequence_E,
        entries.sampling_E,
    ]
    optional = entries.teacher_E, entries.place_E, entries.candidates_E
    columns += [column for column in optional if column is not None]
    if any(len(column) != len(token_E) for column in columns):
        raise TokenMismatchError("The arrays of the loss entries differ in length.")
    _require_all(entries.sequence_E >= 0, "entry_sequence_E", "is a rollout's number")
    _require_all(
        (entries.sampling_E >= 0) & (entries.sampling_E < distributions),
        "entry_sampling_E",
        "is one of the request's distributions",
    )
    if entries.teacher_E is not None:
        _require_all(
            np.isfinite(entries.teacher_E) & (entries.teacher_E <= 0), _TEACHER, "is finite and at most 0"
        )
    _require_all((token_E >= 0) & (token_E < len(tree)), "entry_token_E", "is a node of the tree")
    _require_all(tree.parent_T[token_E] >= 0, "entry_token_E", "has a token before it")
    if entries.place_E is not None:
        _require_all(
            (entries.place_E >= 0) & (entries.place_E < tree.depth_T[token_E]),
            _PLACE,
            "has as many tokens before it and a prompt",
        )
    _require_all(
        np.isnan(entries.logprob_E) | (np.isfinite(entries.logprob_E) & (entries.logprob_E <= 0)),
        "entry_logprob_E",
        "is finite and at most 0, or NaN where nobody sampled the token",
    )
    if entries.candidates_E is not None and entries.candidates is not None:
        check_candidates(tree.tokens_T[token_E], entries.candidates_E, entries.candidates)
    _require_all(np.isfinite(entries.advantage_E), "entry_advantage_E", "is finite")
    _require_all(
        np.isfinite(entries.weight_E) & (entries.weight_E >= 0), "entry_weight_E", "is finite and at least 0"
    )


def check_candidates(id_E: IntArray, number_E: IntArray, sets: CandidateSets) -> None:
    """Raise TokenMismatchError unless the sets are sets and each entry's id is in its own."""
    end_K, id_J = sets.end_K.astype(np.int64), sets.id_J
    start_K = np.concatenate([[0], end_K[:-1]])
    _require_all((end_K > start_K) & (end_K <= len(id_J)), _ENDS, "lies after the set before it")
    if (end_K[-1] if len(end_K) else 0) != len(id_J):
        raise TokenMismatchError(f"{_IDS} of the batch has ids that belong to no set.")
    first_J = np.zeros(len(id_J), bool)
    first_J[start_K[: len(end_K)]] = True
    _require_all((id_J >= 0) & (first_J | (id_J > np.roll(id_J, 1))), _IDS, "rises within a set, from 0")
    _require_all((number_E >= -1) & (number_E < len(sets)), _CANDIDATES, "is the number of a set, or -1")
    # Sets as keys that rise: (set, id). An entry's pair must be among them.
    set_J = np.repeat(np.arange(len(sets)), end_K - start_K[: len(end_K)])
    width = int(max(id_J.max(initial=0), id_E.max(initial=0))) + 1
    key_J, key_E = set_J * width + id_J, number_E.astype(np.int64) * width + id_E
    _require_all((number_E < 0) | np.isin(key_E, key_J), _CANDIDATES, "names a set that has the sampled id")


def _ends(parent_T: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Index after the last descendant: the next node whose parent lies before this node."""
    size = len(parent_T)
    end_T = np.full(size, size, np.int32)
    open_nodes: list[int] = []
    for node, parent in enumerate(parent_T.tolist()):
        while open_nodes and open_nodes[-1] != parent:
            end_T[open_nodes.pop()] = node
        open_nodes.append(node)
    return end_T


def _require_all(holds: npt.NDArray[np.bool_], name: str, rule: str) -> None:
    wrong = np.flatnonzero(~holds)
    if len(wrong):
        raise TokenMismatchError(f"{name} of the batch breaks its rule (it {rule}) at index {int(wrong[0])}.")


def _metadata(body: bytes) -> dict[str, str]:
    """The header's metadata; `safetensors` gives it from files only."""
    size = int.from_bytes(body[:8], "little")
    return dict(json.loads(body[8 : 8 + size]).get("__metadata__", {}))
