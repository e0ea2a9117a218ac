"""Tensors of a message <-> arrays of numpy. A tensor is dense, or sparse in rows (CSR)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from art.batch.batch_types import FloatArray
from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.refusals import TOO_LARGE, refusal

Long = npt.NDArray[np.int64]
Numbers = Long | FloatArray
_DTYPES: Mapping[int, np.dtype[np.generic]] = MappingProxyType(
    {
        messages.DTYPE_FLOAT32: np.dtype("<f4"),
        messages.DTYPE_INT64: np.dtype("<i8"),
        messages.DTYPE_INT32: np.dtype("<i4"),
    }
)


class TensorReader:
    """Reads the tensors of one request. All of them, written densely, take at most `largest` bytes."""

    def __init__(self, largest: int) -> None:
        self._largest = self._left = largest

    def read(self, tensor: messages.Tensor, param: str) -> Numbers:
        """Returns a dense array of one or two dimensions, float32 or int64; unlisted cells of a sparse tensor
        are 0.

        Raises RequestError where bytes, shape and indices do not fit each other.
        """
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise refusal(
                f"{param} has dtype number {tensor.dtype}; send float32 (1) or int64 (2).", param=param
            )
        encoding, shape = tensor.WhichOneof("encoding"), tuple(tensor.shape)
        if len(shape) > 2 or any(size < 1 for size in shape):
            raise refusal(
                f"{param} has shape {list(shape)}; send one or two dimensions of at least 1.", param=param
            )
        if encoding == "sparse_csr":
            values = self._sparse(tensor.sparse_csr, shape, dtype, param)
        else:
            values = self._dense(tensor.dense, shape, dtype, param)
        if dtype.kind == "f":
            return values.astype(np.float32)
        return values.astype(np.int64)

    def _dense(
        self, written: bytes, shape: tuple[int, ...], dtype: np.dtype[np.generic], param: str
    ) -> npt.NDArray[np.generic]:
        values = _from_bytes(written, dtype, param)
        shape = shape or values.shape
        if len(values) != math.prod(shape):
            raise refusal(
                f"{param} has {len(values)} values, and its shape {list(shape)} asks for {math.prod(shape)}.",
                param=param,
            )
        self._take(math.prod(shape), param)
        return values.reshape(shape)

    def _sparse(
        self, csr: messages.SparseCsr, shape: tuple[int, ...], dtype: np.dtype[np.generic], param: str
    ) -> npt.NDArray[np.generic]:
        index = np.dtype("<i8")
        crow = _from_bytes(csr.crow_indices, index, f"{param}.crow_indices").astype(np.int64)
        column = _from_bytes(csr.col_indices, index, f"{param}.col_indices").astype(np.int64)
        values = _from_bytes(csr.values, dtype, param)
        if len(shape) != 2 or len(crow) != shape[0] + 1:
            raise refusal(
                f"{param} is sparse with shape {list(shape)} and {len(crow)} row pointers; send the two "
                "sizes of its dense shape, and one pointer more than rows.",
                param=param,
            )
        count = len(values)
        if len(column) != count or crow[0] != 0 or crow[-1] != count or (np.diff(crow) < 0).any():
            raise refusal(
                f"{param} is sparse with {count} values and {len(column)} columns; its row pointers rise "
                f"from 0 to {count}.",
                param=param,
            )
        row = np.repeat(np.arange(shape[0]), np.diff(crow))
        apart = (np.diff(column) > 0) | (np.diff(row) > 0)
        if not ((column >= 0) & (column < shape[1])).all() or not apart.all():
            raise refusal(
                f"{param} is sparse; its columns rise within each row, from 0 to {shape[1] - 1}.", param=param
            )
        self._take(math.prod(shape), param)
        dense = np.zeros(shape, dtype)
        dense[row, column] = values
        return dense

    def _take(self, cells: int, param: str) -> None:
        self._left -= 4 * cells
        if self._left < 0:
            raise refusal(
                f"{param} and the tensors before it take more than {self._largest} bytes as dense arrays. "
                "Send fewer datums in one request.",
                param=param,
                code=TOO_LARGE,
            )


def _from_bytes(written: bytes, dtype: np.dtype[np.generic], param: str) -> npt.NDArray[np.generic]:
    if len(written) % dtype.itemsize:
        raise refusal(
            f"{param} has {len(written)} bytes, which are not whole values of {dtype.itemsize} bytes.",
            param=param,
        )
    return np.frombuffer(written, dtype)


def read_ids(written: bytes, param: str) -> npt.NDArray[np.int32]:
    """Returns the ids of a piece of text. Raises RequestError for negative ones and for torn bytes."""
    ids = _from_bytes(written, np.dtype("<i4"), param).astype(np.int32)
    if (ids < 0).any():
        at = int(np.flatnonzero(ids < 0)[0])
        raise refusal(f"{param} has id {int(ids[at])} at index {at}; ids are at least 0.", param=param)
    return ids


def float_bytes(values: npt.ArrayLike) -> bytes:
    return np.asarray(values, "<f4").tobytes()


def id_bytes(values: npt.ArrayLike) -> bytes:
    return np.asarray(values, "<i4").tobytes()


def long_bytes(values: npt.ArrayLike) -> bytes:
    return np.asarray(values, "<i8").tobytes()


def write_floats(values: FloatArray) -> messages.Tensor:
    """A dense tensor of float32."""
    return messages.Tensor(dense=float_bytes(values), dtype=messages.DTYPE_FLOAT32, shape=values.shape)


def write_longs(values: npt.NDArray[np.integer]) -> messages.Tensor:
    """A dense tensor of int64."""
    return messages.Tensor(dense=long_bytes(values), dtype=messages.DTYPE_INT64, shape=values.shape)


def write_sparse_floats(
    values: FloatArray, *, shape: Sequence[int], crow: Sequence[int], column: Sequence[int]
) -> messages.Tensor:
    """A sparse tensor of float32. `values` are those of the listed cells, row by row."""
    csr = messages.SparseCsr(
        values=float_bytes(values), crow_indices=long_bytes(crow), col_indices=long_bytes(column)
    )
    return messages.Tensor(sparse_csr=csr, dtype=messages.DTYPE_FLOAT32, shape=shape)
