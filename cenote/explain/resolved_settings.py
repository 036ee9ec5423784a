"""What was decided for this model on this machine, and why, in the words of whoever decided it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from cenote.config.engine import Sourced
from cenote.engine.engine import PoolingEngine
from cenote.explain.flops import Mixing, arithmetic
from cenote.explain.hardware import usable_cores
from cenote.explain.microbenchmarks import Linears, query_key_value
from cenote.explain.results import Chosen, Setting
from cenote.inputs.wordpiece import word_piece
from cenote.kernels import attention as kernels
from cenote.kernels import native_library
from cenote.kernels.cpu_features import MAX_CPU_ISA, ONEDNN_VARIABLES, cpu_features

IN_USE, NOT_BUILT = "in use", "not built"
KERNELS = {
    "tiles": "our own code on the processor's matrix tiles",
    "packed": "our own kernels, chosen by length",
    "flash": "torch's packed flash attention",
    "sdpa": "torch's attention, runs of equal lengths at a time",
    "explicit": "written out, for what no fused kernel knows",
    "own": "written out by this family, counted with the rest",
    "transformers": "the library's own, counted with the rest",
    "none": "no attention in this model",
}


LINEARS = {
    "TileLinear": "prepacked for the processor's matrix tiles, our own code",
    "PrepackedLinear": "prepacked by oneDNN",
    "Int8Linear": "int8, by torch",
    "Fp8Linear": "fp8, but for the output of attention",
    "Linear": "as stored",
}


def chosen(engine: PoolingEngine) -> Chosen:
    description = engine.model.description
    tiles = cpu_features().amx
    return Chosen(
        device=description.device.value.type,
        dtype=str(description.dtype.value).removeprefix("torch."),
        quantization=description.quantization.value,
        attention=_attention(engine),
        native=_native(tiles),
        tiles=tiles,
        fused=is_fused(engine.model.backbone),
        is_native=description.entry.native,
        budget=engine.loop.scheduler.token_budget,
        max_num_seqs=engine.loop.scheduler.max_sequences,
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        word_pieces=type(engine.tokenizer.raw.model).__name__ == "WordPiece",
        own_tokenizer=word_piece(engine.tokenizer.raw) is not None,
    )


def linears(engine: PoolingEngine) -> Linears:
    """What makes layers like those of the model."""
    description = engine.model.description
    dtype, device = description.dtype.value, description.device.value
    return Linears(dtype, device, description.quantization.value, finished=description.entry.native)


def is_fused(backbone: torch.nn.Module) -> bool:
    """Whether all layers run in one call."""
    return getattr(getattr(backbone, "backbone", backbone), "stack", None) is not None


def _native(tiles: bool) -> str:
    if native_library.available():
        return IN_USE
    if not tiles:
        return "not for this processor"
    return "cannot be loaded" if any(Path(native_library.__file__).parent.glob("_native*")) else NOT_BUILT


def settings(engine: PoolingEngine, chosen: Chosen) -> Iterator[Setting]:
    description, config = engine.model.description, engine.config
    yield _sourced("device", description.device)
    yield _sourced("number type", description.dtype)
    if chosen.device == "cpu":
        threads = os.environ.get("OMP_NUM_THREADS")
        yield Setting(
            name="threads",
            value=str(chosen.threads),
            reason=f"OMP_NUM_THREADS={threads}" if threads else f"{chosen.cores} cores are free to this process",
        )
        yield Setting(name="native code", value=chosen.native, reason=_native_reason(chosen))
    if chosen.fused:
        yield Setting(name="layers", value="all in one call", reason="an encoder that the native code knows whole")
    yield _linear(engine, chosen)
    reason = _attention_reason(chosen, _first_mixing(engine))
    yield Setting(name="attention", value=f"{chosen.attention}: {KERNELS.get(chosen.attention, '')}", reason=reason)
    asked = config.quantization is not None
    yield Setting(
        name="quantization",
        value=chosen.quantization or "none",
        reason=f"from {description.quantization.source}" if asked else "not asked for (--quantization)",
    )
    if chosen.device == "cuda":
        yield _graphs(engine)
    given = config.max_num_batched_tokens is not None
    reason = "--max-num-batched-tokens" if given else f"chosen for {chosen.device}"
    yield Setting(name="tokens per batch", value=f"at most {chosen.budget}", reason=reason)
    yield Setting(name="sequences per batch", value=f"at most {chosen.max_num_seqs}", reason="--max-num-seqs")
    yield _tokenizer(chosen)


def _sourced(name: str, decision: Sourced[torch.dtype] | Sourced[torch.device]) -> Setting:
    return Setting(name=name, value=str(decision.value).removeprefix("torch."), reason=f"from {decision.source}")


def _first_mixing(engine: PoolingEngine) -> Mixing | None:
    mixings = arithmetic(engine.model, "embed").mixings
    return mixings[0] if mixings else None


def _attention(engine: PoolingEngine) -> str:
    """The module of the kernel that the first layer gets."""
    description = engine.model.description
    if not description.entry.native:
        return "transformers"
    mixing = _first_mixing(engine)
    if mixing is None:
        return "none"
    if not mixing.by_kernel:
        return "own"
    if mixing.softcap is not None or mixing.sinks or mixing.bias:
        return "explicit"
    query, _, _ = query_key_value(mixing, 1, description.dtype.value, description.device.value)
    return kernels.choose(query).__module__.rpartition(".")[2]


def _attention_reason(chosen: Chosen, mixing: Mixing | None) -> str:
    if mixing is None or chosen.attention in ("own", "transformers"):
        return "the model's architecture"
    if chosen.attention == "explicit":
        return "biases, caps or sinks in this model's attention"
    heads = f"heads of {mixing.head_dim} in {chosen.dtype}"
    if chosen.attention == "tiles":
        return f"{heads}, amx_bf16 in this processor"
    if chosen.attention == "sdpa" and chosen.device == "cpu":
        if not chosen.tiles:
            return f"{heads}, no matrix tiles (AMX) in this processor"
        if chosen.dtype != "bfloat16" or mixing.head_dim % 32:
            return f"{heads}: the tiles take bfloat16 and multiples of 32"
        return f"native code {chosen.native}"
    return heads


def _native_reason(chosen: Chosen) -> str:
    if not chosen.tiles:
        set_by = [f"{name}={os.environ[name]}" for name in (MAX_CPU_ISA, *ONEDNN_VARIABLES) if os.environ.get(name)]
        return " and ".join(["no matrix tiles (AMX) in this processor", *set_by])
    reasons = {IN_USE: "amx_bf16 in this processor", NOT_BUILT: "no compiler was found at install"}
    return reasons.get(chosen.native, "it was built from other code, or its libraries are missing")


def _graphs(engine: PoolingEngine) -> Setting:
    from cenote.engine.execution.cuda_graphs import TOKENS, recordable

    if recordable(engine.model.backbone):
        return Setting(name="CUDA graphs", value=f"up to {TOKENS[-1]} tokens", reason="nothing waits for the host")
    return Setting(name="CUDA graphs", value="none", reason="this model's layers or number type")


def _tokenizer(chosen: Chosen) -> Setting:
    if chosen.own_tokenizer:
        return Setting(name="tokenizer", value="our own code", reason="word pieces")
    reason = "no compiler was found at install" if chosen.word_pieces else "no word pieces"
    return Setting(name="tokenizer", value="the tokenizers library", reason=reason)


def _linear(engine: PoolingEngine, chosen: Chosen) -> Setting:
    description = engine.model.description
    size = description.architecture.backbone.hidden_size
    kind = type(linears(engine).layer(size, size)).__name__
    reason = f"{chosen.quantization or chosen.dtype} on {chosen.device}"
    return Setting(name="linear layers", value=LINEARS.get(kind, kind), reason=reason)
