"""The operations that a custom loss may name. Anything else is refused: what is here reads and writes nothing
but its arguments, gives new tensors, and draws nothing at random.

A name is that which torch.fx gives to a function, or that of a method of tensors.
"""

from __future__ import annotations

DTYPES = frozenset({"bool", "float32", "float64", "int32", "int64"})
ATTRIBUTES = frozenset({"T", "device", "dtype", "ndim", "shape"})

_ELEMENTWISE = frozenset(
    "abs ceil clamp clip cos erf exp expm1 floor isfinite isinf isnan log log10 log1p log2 nan_to_num neg "
    "reciprocal round rsqrt sigmoid sign sin sqrt square tanh tan trunc relu softmax log_softmax".split()
)
_PAIRS = frozenset(
    "add div eq ge gt le logical_and logical_not logical_or lt maximum minimum mul ne pow sub true_divide "
    "where masked_fill atan2 dot outer matmul".split()
)
_REDUCING = frozenset(
    "all amax amin any argmax argmin cumprod cumsum logcumsumexp logsumexp max mean median min norm prod std "
    "sum var".split()
)
_SHAPING = frozenset(
    "clone diff flatten flip gather index_select narrow permute reshape roll squeeze transpose tril triu "
    "unsqueeze".split()
)
_OF_TENSORS_ALONE = frozenset(
    "bool contiguous detach dim double expand expand_as float int long new_ones new_zeros numel repeat size "
    "t to type_as view view_as".split()
)
_OF_TORCH_ALONE = frozenset("cat full_like ones_like stack zeros_like".split())
_OF_FUNCTIONAL = frozenset(
    "binary_cross_entropy elu gelu hinge_embedding_loss huber_loss kl_div l1_loss leaky_relu log_softmax "
    "logsigmoid mse_loss relu sigmoid silu smooth_l1_loss softmax softplus tanh".split()
)
_OF_OPERATOR = frozenset(
    "abs add and_ eq floordiv ge getitem gt inv invert le lt mod mul ne neg or_ pos pow sub truediv "
    "xor".split()
)
_OF_MATH = frozenset("exp fabs log log2 sqrt".split())

_BOTH = _ELEMENTWISE | _PAIRS | _REDUCING | _SHAPING
METHODS = _BOTH | _OF_TENSORS_ALONE
FUNCTIONS = frozenset(
    {
        "getattr",
        *(f"torch.{name}" for name in _BOTH | _OF_TORCH_ALONE),
        *(f"torch.nn.functional.{name}" for name in _OF_FUNCTIONAL),
        *(f"torch._C._nn.{name}" for name in ("gelu", "log_sigmoid", "softplus")),
        *(f"operator.{name}" for name in _OF_OPERATOR),
        *(f"math.{name}" for name in _OF_MATH),
    }
)
