"""What was found out: plain numbers, for the report, for JSON and for advice."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.explain.timing import MeasuredValue

# where the time of a run goes: name in JSON -> words
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
    """What computes here, and how fast it does the few things that models are made of."""

    processor: str
    cores: int  # that this process may use
    threads: int  # that torch computes with
    torch: str
    gpu: str | None
    gpu_bytes: int | None
    gemm: dict[str, MeasuredValue]  # FLOP/s of a large product in every number type that could be used
    copy: MeasuredValue  # bytes/s read and written where the model lives
    to_device: MeasuredValue | None = None  # bytes/s from page-locked memory
    from_device: MeasuredValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A decision, and why it was taken."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """The decisions that advice looks at."""

    device: str  # cpu or cuda
    dtype: str
    quantization: str | None
    attention: str  # the name of the kernel
    native: str  # compiled code of ours: in use, not built, or what else keeps it from use
    tiles: bool  # whether the processor has matrix tiles
    fused: bool  # whether all layers run in one call
    is_native: bool  # False: the Transformers library runs the model
    budget: int  # tokens in a batch, at most
    max_num_seqs: int
    cores: int
    threads: int
    word_pieces: bool  # whether our own tokenizer could read the model's texts
    own_tokenizer: bool  # whether it does


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """One workload: what it could reach, what it reaches, and where its time goes."""

    name: str
    mean_length: float
    batch_tokens: int  # of the batches that were measured by parts
    flops_per_token: float
    light: MeasuredValue  # tokens/s if there were nothing but matrix products, at the best rate of this machine
    memory_light: float | None  # tokens/s if there were nothing but reading and writing around them; of a GPU
    reached: MeasuredValue  # tokens/s, texts in, answers out
    of_light: MeasuredValue  # reached / light, within the same round
    own_rate: MeasuredValue  # FLOP/s of its own linear layers
    shares: dict[str, float]  # of the work, by part; they add up to 1
    model_time: MeasuredValue  # time of the model by itself / time of a real run
    run_batch_tokens: float  # of the batches that a real run had, on average


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResults:
    model: str
    task: str
    weights: int  # numbers in all matrices
    complete: bool  # whether all matrix products are counted
    machine: HardwareInfo
    chosen: ResolvedSettings
    settings: tuple[Setting, ...]
    readings: tuple[WorkloadResult, ...]
    tokenizer: MeasuredValue  # tokens/s
    per_input: MeasuredValue  # seconds of the engine for one input, besides tokenising and the model
    single: MeasuredValue  # seconds from one text of 16 tokens to its answer
    alternatives: dict[str, MeasuredValue]  # how much faster the linear layers are in number types that promise to be
    larger_batches: MeasuredValue | None  # rate of the linear layers with four times the budget / with the budget
    rounds: int
    seconds: float  # that all of this took
