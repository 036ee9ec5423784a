"""The resolved settings of a model on this machine, each with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from cenote.config.device import Device
from cenote.config.options import Sourced
from cenote.engine.engine import PoolingEngine
from cenote.explain.flops import AttentionShape, count_flops
from cenote.explain.microbenchmarks import LinearFactory, make_random_qkv
from cenote.explain.results import ResolvedSetting, ResolvedSettings
from cenote.kernels import attention as kernels
from cenote.kernels import native_library
from cenote.kernels.cpu.encoder import LevelEncoder
from cenote.kernels.cpu.library import load_level
from cenote.kernels.cpu_features import CPU_LEVEL, ONEDNN_VARIABLES, cpu_features
from cenote.layers.fused_encoder import FusedEncoder
from cenote.layers.torch_dtypes import to_torch_device, to_torch_dtype
from cenote.native.backbone import NativeBackbone
from cenote.utils.dtypes import Dtype
from cenote.utils.system_limits import count_cpus

IN_USE, NOT_BUILT = "in use", "not built"
# module in cenote.kernels, or cenote.kernels.gpu -> name of the kernel in `--json`, which programs read
KERNEL_NAMES = {
    "amx_attention": "tiles",
    "packed_attention": "packed",
    "flash": "flash",
    "sdpa": "sdpa",
    "eager_attention": "explicit",
}
KERNEL_DESCRIPTIONS = {
    "tiles": "native code with AMX tiles",
    "level": "native code, with all layers in one call",
    "packed": "Triton kernels, selected by sequence length",
    "flash": "torch's packed flash attention",
    "sdpa": "torch's scaled_dot_product_attention over runs of equal length",
    "explicit": "unfused, for biases, soft caps and sinks",
    "own": "implemented by this family, counted with the other layers",
    "transformers": "the Transformers library's, counted with the other layers",
    "none": "no attention in this model",
}
# class in cenote.kernels, or torch.nn -> description
LINEAR_DESCRIPTIONS = {
    "PackedLinearModule": "native code, prepacked",
    "PrepackedLinear": "prepacked by oneDNN",
    "Int8Linear": "int8, by torch",
    "WeightOnlyLinear": "quantized weights, dequantized for each batch",
    "Fp8Linear": "fp8, except the last layer and narrow output projections of attention",
    "Linear": "as stored",
}


def resolve_settings(engine: PoolingEngine) -> ResolvedSettings:
    description = engine.model.description
    tiles = cpu_features().has_amx
    return ResolvedSettings(
        device=description.device.value.type,
        dtype=description.dtype.value,
        quantization=description.quantization.value,
        attention=_attention_kernel_name(engine),
        native=describe_native_code(tiles, uses_amx=tiles and description.dtype.value == "bfloat16"),
        tiles=tiles,
        fused=find_fused_encoder(engine.model.backbone) is not None,
        is_native=not description.entry.uses_transformers,
        budget=engine.core.loop.scheduler.token_budget,
        max_num_seqs=engine.core.loop.scheduler.max_num_seqs,
        cores=count_cpus(),
        threads=torch.get_num_threads(),
        word_pieces=engine.tokenizer.native.is_known,
        own_tokenizer=engine.tokenizer.native.encoder is not None,
    )


def make_linear_factory(engine: PoolingEngine) -> LinearFactory:
    """Return a factory for layers like those of the model."""
    description = engine.model.description
    products = engine.model.products
    return LinearFactory(
        to_torch_dtype(description.dtype.value),
        to_torch_device(description.device.value),
        description.quantization.value,
        matmul_dtype=None
        if products is None
        else {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(products.format),
        is_post_processed=not description.entry.uses_transformers,
    )


def find_fused_encoder(backbone: torch.nn.Module | NativeBackbone) -> LevelEncoder | None:
    """Return what runs all layers in one call; None if each runs by itself."""
    if isinstance(backbone, NativeBackbone):
        return backbone.encoder
    fused: FusedEncoder | None = getattr(getattr(backbone, "backbone", backbone), "fused_encoder", None)
    return None if fused is None else fused.encoder


def describe_native_code(tiles: bool, *, uses_amx: bool) -> str:
    if native_library.is_available() if uses_amx else load_level() is not None:
        return IN_USE
    if not tiles and not cpu_features().has_level:
        return "not for this processor"
    return "cannot be loaded" if any(Path(native_library.__file__).parent.glob("_native*")) else NOT_BUILT


def iter_settings(engine: PoolingEngine, resolved: ResolvedSettings) -> Iterator[ResolvedSetting]:
    description, config = engine.model.description, engine.config
    yield _sourced_setting("device", description.device)
    yield _sourced_setting("dtype", description.dtype)
    yield ResolvedSetting("runtime", description.runtime.value, description.runtime.source)
    if resolved.device == "cpu":
        threads = os.environ.get("OMP_NUM_THREADS")
        yield ResolvedSetting(
            "threads",
            str(resolved.threads),
            f"OMP_NUM_THREADS={threads}" if threads else f"{resolved.cores} cores available to this process",
        )
        yield ResolvedSetting("native code", resolved.native, _native_reason(resolved))
    if engine.model.products is not None:
        yield ResolvedSetting("products", str(engine.model.products), _products_reason(engine))
    if resolved.fused:
        yield ResolvedSetting("layers", "all in one call", "encoder supported by the native code")
    yield _linear_setting(engine, resolved)
    reason = _attention_reason(resolved, _first_attention(engine))
    yield ResolvedSetting(
        "attention",
        f"{resolved.attention}: {KERNEL_DESCRIPTIONS.get(resolved.attention, '')}",
        reason,
    )
    asked = config.quantization is not None
    yield ResolvedSetting(
        "quantization",
        resolved.quantization or "none",
        f"from {description.quantization.source}" if asked else "not set (--quantization)",
    )
    yield _deterministic_setting(engine)
    if resolved.device == "cuda":
        yield _cuda_graph_setting(engine)
    given = config.max_num_batched_tokens is not None
    reason = "--max-num-batched-tokens" if given else f"default for {resolved.device}"
    yield ResolvedSetting("tokens per batch", f"at most {resolved.budget}", reason)
    yield ResolvedSetting("sequences per batch", f"at most {resolved.max_num_seqs}", "--max-num-seqs")
    yield _tokenizer_setting(engine)
    if description.late_interaction is not None:
        summary = description.late_interaction.summary
        yield ResolvedSetting("late interaction", summary.value, f"from {summary.source}")


def _sourced_setting(name: str, decision: Sourced[Dtype] | Sourced[Device]) -> ResolvedSetting:
    return ResolvedSetting(name, str(decision.value), f"from {decision.source}")


def _first_attention(engine: PoolingEngine) -> AttentionShape | None:
    mixings = count_flops(engine.model, "embed").attentions
    return mixings[0] if mixings else None


def _attention_kernel_name(engine: PoolingEngine) -> str:
    """Return the name of the attention kernel of the first layer."""
    description = engine.model.description
    if description.entry.uses_transformers:
        return "transformers"
    mixing = _first_attention(engine)
    if mixing is None:
        return "none"
    if not mixing.uses_kernel:
        return "own"
    is_plain = mixing.softcap is None and not mixing.has_sinks and not mixing.has_bias
    if (encoder := find_fused_encoder(engine.model.backbone)) is not None:
        return "tiles" if is_plain and encoder.level.name == "amx" else "level"
    if not is_plain:
        return "explicit"
    dtype, device = to_torch_dtype(description.dtype.value), to_torch_device(description.device.value)
    query, _, _ = make_random_qkv(mixing, 1, dtype, device)
    return KERNEL_NAMES[kernels.select_kernel(query).__module__.rpartition(".")[2]]


def _attention_reason(chosen: ResolvedSettings, mixing: AttentionShape | None) -> str:
    if mixing is None or chosen.attention in ("own", "transformers"):
        return "the model's architecture"
    if chosen.attention == "explicit":
        return "biases, caps or sinks in this model's attention"
    heads = f"heads of {mixing.head_dim} in {chosen.dtype}"
    if chosen.attention == "level":
        return "encoder supported by the native code"
    if chosen.attention == "tiles":
        return f"{heads}, amx_bf16 in this CPU"
    if chosen.attention == "sdpa" and chosen.device == "cpu":
        if not chosen.tiles:
            return f"{heads}, no AMX in this CPU"
        if chosen.dtype != "bfloat16" or mixing.head_dim % 32:
            return f"{heads}: AMX attention needs bfloat16 and multiples of 32"
        return f"native code {chosen.native}"
    return heads


def _products_reason(engine: PoolingEngine) -> str:
    description = engine.model.description
    if description.quantization.value is not None:
        return f"from {description.quantization.source}"
    return f"from {description.matmul_dtype.source}"


def _native_reason(chosen: ResolvedSettings) -> str:
    # AMX is for models in bfloat16; others use the level below
    if (level := load_level()) is not None and not (chosen.tiles and chosen.dtype == "bfloat16"):
        return f"level {level.name} of this CPU"
    if not chosen.tiles and not cpu_features().has_level:
        set_by = [f"{name}={os.environ[name]}" for name in (CPU_LEVEL, *ONEDNN_VARIABLES) if os.environ.get(name)]
        return " and ".join(["no AMX and no AVX2 in this CPU", *set_by])
    reasons = {IN_USE: "amx_bf16 in this CPU", NOT_BUILT: "no compiler was found at install"}
    return reasons.get(chosen.native, "it was built from another version, or libraries are missing")


def _deterministic_setting(engine: PoolingEngine) -> ResolvedSetting:
    if not engine.model.description.deterministic:
        return ResolvedSetting("deterministic", "no", "not set (--deterministic)")
    value = "in batches" if engine.model.is_batch_invariant else "each sequence runs alone"
    return ResolvedSetting("deterministic", value, "--deterministic, layers of this model")


def _cuda_graph_setting(engine: PoolingEngine) -> ResolvedSetting:
    from cenote.engine.execution.cuda_graphs import get_max_tokens, supports_cuda_graphs

    if engine.model.description.deterministic:
        return ResolvedSetting("CUDA graphs", "none", "--deterministic")
    if supports_cuda_graphs(engine.model.backbone):
        max_tokens = get_max_tokens(engine.model.backbone)
        return ResolvedSetting("CUDA graphs", f"up to {max_tokens} tokens", "no host synchronization")
    return ResolvedSetting("CUDA graphs", "none", "layers or dtype of this model")


def _tokenizer_setting(engine: PoolingEngine) -> ResolvedSetting:
    native = engine.tokenizer.native
    value = "the tokenizers library" if native.encoder is None else "native code"
    return ResolvedSetting("tokenizer", value, native.reason)


def _linear_setting(engine: PoolingEngine, chosen: ResolvedSettings) -> ResolvedSetting:
    description = engine.model.description
    size = description.architecture.backbone.hidden_size
    kind = type(make_linear_factory(engine).make_layer(size, size)).__name__
    reason = f"{chosen.quantization or chosen.dtype} on {chosen.device}"
    return ResolvedSetting("linear layers", LINEAR_DESCRIPTIONS.get(kind, kind), reason)
