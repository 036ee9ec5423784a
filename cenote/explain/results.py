"""Measurement results, for the report, JSON and advice."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.explain.timing import MeasuredValue

# parts of the time of a run: name in JSON -> description
TIME_PARTS = {
    "products": "matrix products",
    "attention": "attention",
    "rest": "norms, activations and the rest",
    "pooling": "pooling",
    "tokenising": "tokenising",
    "engine": "engine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareInfo:
    """The hardware and its measured rates."""

    processor: str
    cores: int  # available to this process
    threads: int  # used by torch
    torch: str
    gpu: str | None
    gpu_bytes: int | None
    gemm: dict[str, MeasuredValue]  # FLOP/s of a large GEMM in every supported dtype
    copy: MeasuredValue  # bytes/s read and written on the device
    to_device: MeasuredValue | None = None  # bytes/s from pinned memory
    from_device: MeasuredValue | None = None


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """A resolved setting and its reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """The settings that advice depends on."""

    device: str  # cpu or cuda
    dtype: str
    quantization: str | None
    attention: str  # the name of the kernel
    native: str  # state of the native code: in use, not built, or the reason why it is not used
    tiles: bool  # whether the CPU has AMX
    fused: bool  # whether all layers run in one call
    is_native: bool  # False: the Transformers library runs the model
    budget: int  # token budget of a batch
    max_num_seqs: int
    cores: int
    threads: int
    word_pieces: bool  # whether native code exists for the tokenizer of the model
    own_tokenizer: bool  # whether it is used


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """One workload: its roofline, its measured speed and its time by part."""

    name: str
    mean_length: float
    batch_tokens: int  # tokens of the batches measured by part
    flops_per_token: float
    light: MeasuredValue  # tokens/s of the matrix products alone, at the best rate of this machine
    memory_light: float | None  # tokens/s limited by memory traffic alone; GPU only
    reached: MeasuredValue  # tokens/s end to end
    of_light: MeasuredValue  # reached / light, within the same round
    own_rate: MeasuredValue  # FLOP/s of its own linear layers
    shares: dict[str, float]  # of the time, by part; they sum to 1
    model_time: MeasuredValue  # time of the model alone / time of an end-to-end run
    run_batch_tokens: float  # mean tokens per batch of the end-to-end run


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResults:
    model: str
    task: str
    weights: int  # number of weights
    complete: bool  # whether all matrix products are counted
    machine: HardwareInfo
    chosen: ResolvedSettings
    settings: tuple[ResolvedSetting, ...]
    readings: tuple[WorkloadResult, ...]
    tokenizer: MeasuredValue  # tokens/s
    per_input: MeasuredValue  # engine overhead in seconds per input, without tokenization and the model
    single: MeasuredValue  # latency in seconds of one text of 16 tokens
    single_parts: dict[str, MeasuredValue]  # its time in the model, the tokenizer and the engine
    alternatives: dict[str, MeasuredValue]  # speedup of the linear layers in other dtypes
    larger_batches: MeasuredValue | None  # rate of the linear layers with four times the budget / with the budget
    rounds: int
    seconds: float  # total duration
