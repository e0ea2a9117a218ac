"""The one line that a trainer worker reads when it starts; see `art.wire.training` for what follows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from art.wire.strict import Strict


class TrainerConfig(Strict):
    """How a trainer worker is started: one line of JSON on its standard input; the key is on no command line.

    `python -m art.training.worker` answers with one line on standard output: `{"ready": true, "port": 41234}`
    once it serves, or `{"ready": false, "error": "..."}`. It ends when its standard input ends.
    """

    base_model: str
    """The name that checkpoints and health carry."""
    model_path: str | None = None
    """Folder or hub name to load the weights from; None: `base_model` itself."""
    key: str = Field(min_length=16)
    """Bearer key of every route."""
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 chooses a free one."""
    device: str = "auto"
    """auto: the first GPU if there is one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch; None: one for a small model, otherwise torch's own choice."""
    token_budget: int | None = Field(default=None, ge=1)
    """Tokens forwarded at once; memory follows it. A longer single path is forwarded whole. None: as many as
    the memory plan allows, at most 8192 on a CPU and 32768 on a GPU.
    """
    attention: Literal["auto", "rectangles", "flex", "dense"] = "auto"
    """auto: rectangles on a CPU, FlexAttention on CUDA, a dense mask where these fail their check."""
    checkpoint_activations: Literal["auto", "on", "off"] = "auto"
    """on: layers are computed twice instead of kept. auto: when memory is too small otherwise."""
    accelerator: Literal["auto", "none", "liger", "unsloth"] = "auto"
    """auto: liger-kernel on CUDA where it is installed."""
