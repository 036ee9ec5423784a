"""The runtime of a model: the last stage of loading before its weights are read."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from cenote.config.engine import EngineConfig, Runtime
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.kernels.cpu.library import load_amx_level, load_level
from cenote.kernels.cpu_features import cpu_features
from cenote.layers.spec import BackboneSpec
from cenote.loading.adapter_files import may_have_adapters
from cenote.loading.family import Family
from cenote.loading.linear_formats import packs_int8
from cenote.loading.number_formats import NumberFormats
from cenote.native.backbone import find_unsupported
from cenote.pooling.plan import PoolingPlan
from cenote.utils.install_commands import torch_command


def resolve_runtime(
    options: EngineConfig, family: Family, formats: NumberFormats, plan: PoolingPlan
) -> Sourced[Runtime]:
    """Return the native runtime for what it computes as fast as torch or faster, torch for all other models."""
    architecture = family.architecture
    requirement = next(_iter_requirements(options, family, formats), None)
    if options.runtime == "native":
        if requirement is not None:
            raise LoadError(f"runtime=native: this model needs the torch runtime ({requirement}); use runtime=auto")
        return Sourced("native", "runtime")
    if options.runtime == "torch":
        _require_torch("runtime=torch")
        return Sourced("torch", "runtime")
    if requirement is not None:
        _require_torch(f"this model needs the torch runtime ({requirement})")
        return Sourced("torch", requirement)
    if shares_prefixes(architecture.backbone, plan) and has_torch():
        return Sourced("torch", "common prefixes are computed once")
    return Sourced("native", "plain transformer on a CPU" if architecture.backbone.num_layers else "table")


def _iter_requirements(options: EngineConfig, family: Family, formats: NumberFormats) -> Iterator[str]:
    """Yield why the native runtime cannot run a model, in words."""
    architecture, backbone = family.architecture, family.architecture.backbone
    if formats.device.value.type != "cpu":
        yield "it is on a GPU"
    if options.tensor_parallel_size > 1:
        yield "its layers are split over several processes"
    if family.kind.value == "tensors":
        yield "the plugin implements it in torch"
    elif family.entry.uses_transformers:
        yield "the Transformers library implements it"
    if (reason := architecture.needs_torch or find_unsupported(backbone)) is not None:
        yield reason
    if may_have_adapters(options, family.layout.checkpoint, architecture):
        yield "it has LoRA adapters"
    if formats.dtype.value == "bfloat16" and (family.late_interaction is not None or architecture.padded_length):
        yield "its texts are padded, in bfloat16"
    if formats.quantization.value is not None and not packs_int8(formats.dtype.value, cpu_features()):
        yield f"quantization={formats.quantization.value} with {formats.dtype.value} layers"
    if backbone.num_layers and find_level(backbone, formats) is None:
        yield "the C library was not built, or has no kernels for this CPU"


def find_level(backbone: BackboneSpec, formats: NumberFormats) -> object | None:
    """Return the level whose kernels multiply in the dtype of a model; None if there is none."""
    level = load_amx_level() if formats.dtype.value == "bfloat16" else load_level()
    return level if level is not None and formats.matmul_dtype.value in level.products else None


def shares_prefixes(backbone: BackboneSpec, plan: PoolingPlan) -> bool:
    """Return whether the torch runtime may compute the common prefix of the texts of a batch once."""
    return backbone.causal and backbone.relative_bias is None and plan.seq_pooling_types.value == ("LAST",)


def has_torch() -> bool:
    return find_spec("torch") is not None


def _require_torch(reason: str) -> None:
    if not has_torch():
        raise LoadError(f"{reason}, but torch is not installed; install it: {torch_command()}")
