"""LoRA adapters on one base model, through PEFT: attach, activate, save, load, remove.

A plain adapter is one that another program wrote: PEFT's two files, without optimizer, RNG or manifest of
ours.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

from art.engine.builtin.peft_folder import INNER, PeftAdapter, read_adapter
from art.errors import CheckpointError, ConfigurationError
from art.extensions import LORA, load_extension
from art.training.causal_lm import decoder_of
from art.training.checkpoint import TrainerState, check_same, read_tensors, verify_files, write_tensors
from art.training.lora_product import Segment, Segments, is_plain, join_products
from art.training.optimizer import seeded_rng, spell_rng
from art.training.policy import Policy
from art.wire.models import ADAPTER_CONFIG_FILE, ADAPTER_FILE, MANIFEST_FILE, STATE_FILE
from art.wire.records import split_bits
from art.wire.training import LoraSpec

LOG = logging.getLogger(__name__)


def is_plain_adapter(folder: Path) -> bool:
    """Returns whether a checkpoint folder is PEFT's alone."""
    return not (folder / STATE_FILE).exists() and (folder / ADAPTER_CONFIG_FILE).is_file()


def read_plain_adapter(folder: Path, policy: Policy, lora: LoraSpec | None, *, seed: int) -> TrainerState:
    """The state that such a folder begins with: its step is its name (`0007`), its optimizer fresh.

    Whether the weights fit the base is told by their shapes, when they are loaded; nothing in the folder says
    more. Raises CheckpointError when it is broken, uses an option of PEFT that is not supported, or is no
    step.
    """
    if (folder / MANIFEST_FILE).is_file():
        verify_files(folder)
    adapter = read_adapter(folder)
    if not folder.name.isdigit():
        raise CheckpointError(f"{str(folder)!r} has no step for a name, such as 0000")
    found = lora_of(adapter)
    if lora is not None:  # dropout is a setting of training: no weights depend on it
        found = found.model_copy(update={"dropout": lora.dropout})
    LOG.warning(
        "%s was written by another program: it is step %d with a fresh optimizer", folder, int(folder.name)
    )
    return TrainerState(
        step=int(folder.name),
        base_model=policy.name,
        base_fingerprint=policy.fingerprint,
        lora=found,
        optimizer=None,
        rng=spell_rng(seeded_rng(seed)),
    )


def lora_of(adapter: PeftAdapter) -> LoraSpec:
    """The shape of an adapter that PEFT wrote. Raises CheckpointError when its ranks differ."""
    ranks = {
        adapter.rank if adapter.is_stacked(name) else int(down.shape[0])
        for name, (down, _) in adapter.weights.items()
    }
    if len(ranks) != 1:
        raise CheckpointError(
            f"adapter {str(adapter.path)!r} has ranks {sorted(ranks)}; only one rank everywhere is supported"
        )
    targets = sorted({name.removesuffix(INNER).rpartition(".")[2] for name in adapter.weights})
    return LoraSpec(r=ranks.pop(), alpha=adapter.alpha, targets=targets, use_rslora=adapter.rank_stabilized)


ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Linear layers that choose experts: an adapter there would change which weights a token meets."""
FUSED = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
"""Families whose kernels read the weight of `out_proj` past its adapter; PEFT refuses it."""


EXPERTS = "experts"
"""The target that means the fused weights of all experts, and the name of the modules that have them."""


class Adapted(Protocol):
    """The part of a policy that adapters need."""

    @property
    def causal_lm(self) -> Any: ...
    @property
    def name(self) -> str: ...

    drops_out: bool


class LoraAdapters:
    """Several LoRAs on one base, by short internal names (PEFT allows no dots). One is active at a time, or
    each of several on its own tokens.
    """

    def __init__(self, policy: Adapted) -> None:
        self._policy = policy
        self._peft: PeftModel | None = None
        self._resting = False
        self._layers: dict[str, LoraLayer] = {}
        """The layers by their names in PEFT's model."""
        self._segments = Segments()
        self._learning: set[str] = set()
        self._shareable: dict[str, bool] = {}
        self._parameters: dict[str, dict[str, torch.nn.Parameter]] = {}

    def attach(self, name: str, spec: LoraSpec, *, seed: int) -> None:
        """A fresh adapter: A drawn from `seed`, B zero, so the model computes what its base does.

        Raises ConfigurationError when a target is no module of the model.
        """
        targets = self.targets(spec)
        linear = [one for one in targets if one != EXPERTS]
        stacks = self._expert_stacks(spec) if EXPERTS in targets else None
        config = LoraConfig(
            r=spec.r,
            lora_alpha=spec.alpha,
            lora_dropout=spec.dropout,
            target_modules=linear,
            target_parameters=stacks,
            exclude_modules=outside_decoder(self._policy.causal_lm, linear),
            use_rslora=spec.use_rslora,
            bias="none",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                if self._peft is None:
                    self._peft = get_peft_model(self._policy.causal_lm, config, adapter_name=name)
                else:
                    self._peft.add_adapter(name, config)
            except ValueError as error:
                raise ConfigurationError(f"PEFT refuses this adapter: {error}") from error
        join_products(self._policy.causal_lm, self._segments)
        self._layers = {key: one for key, one in self._peft.named_modules() if isinstance(one, LoraLayer)}
        self._parameters[name] = self._find_parameters(name)
        self._rest_all()
        # Set afterwards: PEFT replaces it by the path that the model was loaded from.
        self._peft.peft_config[name].base_model_name_or_path, _ = split_bits(self._policy.name)
        self.activate(name)

    def activate(self, name: str, *, dropout: bool = False) -> None:
        """Make this adapter the one that computes. The base stays as in evaluation; only LoRA has dropout."""
        if self._resting:
            self._model.base_model.enable_adapter_layers()
            self._resting = False
        for layer in self._layers.values():
            if name in layer.lora_dropout:
                layer.lora_dropout[name].train(dropout)
        self._policy.drops_out = dropout and self._model.peft_config[name].lora_dropout > 0
        self._switch(name)

    def _switch(self, name: str) -> None:
        # PEFT's `set_adapter` walks over the whole model, and in each layer over all of its adapters.
        self._model.active_adapter = self._model.base_model.active_adapter = name
        for layer in self._layers.values():
            layer._active_adapter = [name]
        self._let_learn({name})

    @contextmanager
    def computing(self, name: str) -> Iterator[None]:
        """Has another adapter, which has no dropout, compute and learn inside the block."""
        active = self._model.active_adapter
        self._switch(name)
        try:
            yield
        finally:
            self._switch(active)

    @contextmanager
    def segmented(self, segments: Sequence[Segment]) -> Iterator[None]:
        """Has each adapter compute its own tokens of every forward pass inside the block; `can_share` says
        whether it can.
        """
        self._let_learn({one.adapter for one in segments})
        self._segments.of_pass = tuple(segments)
        try:
            yield
        finally:
            self._segments.of_pass = ()
            self._let_learn({self._model.active_adapter})

    def can_share(self, name: str) -> bool:
        """Returns whether the adapter can compute its own tokens of a pass: plain products. One with a
        dropout cannot while that is on.
        """
        if name not in self._shareable:
            self._shareable[name] = all(
                type(one) is LoraLinear and type(one.base_layer) is torch.nn.Linear and is_plain(one, name)
                for one in self._layers.values()
                if name in one.lora_A
            )
        return self._shareable[name]

    def _let_learn(self, names: set[str]) -> None:
        """Gradients are computed for these adapters alone."""
        for name in self._learning ^ names:
            for parameter in self._parameters.get(name, {}).values():
                parameter.requires_grad = name in names
        self._learning = names

    def _rest_all(self) -> None:
        """PEFT has attached or removed one, and let others learn as it does."""
        for own in self._parameters.values():
            for parameter in own.values():
                parameter.requires_grad = False
        self._learning = set()

    def deactivate(self) -> None:
        """No adapter computes until the next one is activated."""
        self._policy.drops_out = False
        if self._peft is not None and not self._resting:
            self._peft.base_model.disable_adapter_layers()
            self._resting = True

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Turns off the adapters inside the block: the model computes what its base does."""
        with self._model.disable_adapter():
            yield

    def parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        """Trainable parameters by the names under which PEFT saves them."""
        return self._parameters[name]

    def _find_parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        return {
            f"{key}.{part}.weight": getattr(layer, part)[name].weight
            for key, layer in self._layers.items()
            for part in ("lora_A", "lora_B")
            if name in getattr(layer, part)
        }

    def matrices(self, name: str) -> frozenset[str]:
        """See `Weights.matrices`."""
        stacks = [key for key, layer in self._layers.items() if isinstance(layer, ParamWrapper)]
        return frozenset(one for one in self.parameters(name) if one.rsplit(".", 2)[0] not in stacks)

    def save(self, name: str, folder: Path) -> list[str]:
        """Write the two files of a PEFT adapter, as PEFT does; equal adapters give equal bytes."""
        write_tensors(folder / ADAPTER_FILE, self.parameters(name), {"format": "pt"})
        config = self._model.peft_config[name]
        config.inference_mode = True
        config.save_pretrained(str(folder))
        config.inference_mode = False
        # PEFT writes the set of targets in an order that changes from process to process.
        written = json.loads((folder / ADAPTER_CONFIG_FILE).read_text())
        for key in ("target_modules", "target_parameters"):
            written[key] = written.get(key) and sorted(written[key])
        (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(written, indent=2, sort_keys=True))
        return [ADAPTER_FILE, ADAPTER_CONFIG_FILE]

    def load(self, name: str, folder: Path) -> None:
        """Copy saved weights into an attached adapter.

        Raises CheckpointError when the file is unreadable or its tensors are not this adapter's.
        """
        path = folder / ADAPTER_FILE
        weights = read_tensors(path)
        parameters = self.parameters(name)
        check_same(path, {key: tuple(value.shape) for key, value in parameters.items()}, weights)
        with torch.no_grad():
            for key, parameter in parameters.items():
                parameter.copy_(weights[key])

    def remove(self, name: str) -> None:
        """Removes an adapter. Another one, if there is any, becomes the active one."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Adapter .* was active")  # meant
            self._model.delete_adapter(name)
        self._shareable.pop(name, None)
        self._parameters.pop(name, None)
        self._rest_all()

    @property
    def _model(self) -> PeftModel:
        assert self._peft is not None, "no adapter was attached"
        return self._peft

    def resolve(self, spec: LoraSpec) -> LoraSpec:
        """The same adapter with its targets spelled out, as a checkpoint keeps it."""
        return spec.model_copy(update={"targets": self.targets(spec)})

    def _expert_stacks(self, spec: LoraSpec) -> list[str]:
        """The parameters that hold the experts' matrices. Raises ConfigurationError where it cannot adapt
        them.
        """
        found: list[str] = load_extension(LORA, EXPERTS).find_stacks(
            decoder_of(self._policy.causal_lm), spec.dropout, self._policy.name
        )
        return found

    def targets(self, spec: LoraSpec) -> list[str]:
        """Sorted. Raises ConfigurationError when one is no linear layer of the model, or there is none."""
        causal_lm = self._policy.causal_lm
        linear = linear_layers(causal_lm)
        asked = set([spec.targets] if isinstance(spec.targets, str) else spec.targets)
        found = asked - {"all-linear", EXPERTS}
        if experts := experts_instead(causal_lm, found):
            raise ConfigurationError(
                f"LoRA targets {sorted(experts)} mean the experts' fused weights to PEFT, which are no "
                "linear layers. Leave them out, or use 'all-linear'; 'experts' adapts all experts' weights."
            )
        if "all-linear" in asked:
            fused = causal_lm.config.model_type in FUSED
            every = linear - ROUTERS - ({"out_proj"} if fused else set())
            found |= every - experts_instead(causal_lm, every)
        unknown = sorted(found - linear)
        if EXPERTS in asked and self._expert_stacks(spec):
            found.add(EXPERTS)
        targets = sorted(found)
        if unknown or not targets:
            raise ConfigurationError(
                f"LoRA targets {unknown or spec.targets!r} are no linear layers of {self._policy.name!r}. "
                f"Known: {', '.join(sorted(linear)) or 'none (its layers are of other classes)'}."
            )
        return targets


def experts_instead(causal_lm: torch.nn.Module, targets: Collection[str]) -> set[str]:
    """Returns the targets for which PEFT would adapt the fused weights of a mixture's experts, even if linear
    layers of that name exist beside them (shared experts, dense layers).
    """
    config = LoraConfig(target_modules=list(targets))
    try:
        convert_peft_config_for_transformers(config, model=causal_lm, conversions=None)
    except ValueError as error:
        raise ConfigurationError(f"PEFT refuses the LoRA targets {sorted(targets)}: {error}") from error
    return set(targets) - set(config.target_modules or ())


def linear_layers(causal_lm: torch.nn.Module) -> set[str]:
    """Last components of the names of the decoder's linear layers: no output layer, no tower for images."""
    return {
        key.removesuffix(".base_layer").rsplit(".", 1)[-1]
        for key, module in decoder_of(causal_lm).named_modules()
        if isinstance(module, torch.nn.Linear) and ".lora_" not in key
    }


def outside_decoder(causal_lm: torch.nn.Module, targets: Collection[str]) -> str | None:
    """A pattern of the modules to leave out, where a target's name also stands outside of the decoder."""
    decoder = decoder_of(causal_lm)
    (prefix,) = [key for key, module in causal_lm.named_modules() if module is decoder]
    strays = [
        key
        for key, _ in causal_lm.named_modules()
        if key.rpartition(".")[2] in targets and not key.startswith(f"{prefix}.")
    ]
    return rf"(?!{re.escape(prefix)}\.).*" if strays else None
