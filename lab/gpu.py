"""`python -m lab.gpu`: tokens per second of known model shapes on this GPU, from token ids to host vectors."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
import torch
from torch import Tensor

from cenote.config.engine import Quantization
from cenote.engine.execution.executor import Executor
from cenote.engine.execution.warmup import NullReceiver
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import GroupSlice, ScheduledBatch, SequenceGroup
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.llm import LLM
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import PoolingOptions
from lab.shapes import SHAPES, VOCABULARY, ModelShape, write_checkpoint

# default runs: shape, quantization, lengths
DEFAULT_RUNS = (
    ("bert-base", None, ("20", "50", "128", "512", "mixed")),
    ("bert-base", "fp8", ("50", "512")),
    ("bert-large", None, ("50",)),
    ("qwen3-0.6b", None, ("512",)),
)
BATCHES_PER_ROUND = 8  # per workload
QUERY_TOKENS = 16


@dataclass(frozen=True, slots=True)
class GpuResult:
    model: str
    level: str  # executor, or LLM (LLM.embed)
    workload: str
    mega_tokens_per_second: float
    spread: float  # (best - worst) / median
    share_of_peak: float


def draw_lengths(workload: str, budget: int, rng: np.random.Generator) -> list[int]:
    """Draw sequence lengths for BATCHES_PER_ROUND full batches; `mixed` is log-normal with mean 120, at most 512."""
    if workload != "mixed":
        length = int(workload)
        return [length] * (budget // length * BATCHES_PER_ROUND)
    drawn = np.clip(rng.lognormal(4.54, 0.7, size=budget * BATCHES_PER_ROUND // 100), 4, 512).astype(int)
    return sorted(drawn[: np.searchsorted(drawn.cumsum(), budget * BATCHES_PER_ROUND)].tolist())


def draw_token_ids(
    lengths: Sequence[int], rng: np.random.Generator
) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return [rng.integers(2, VOCABULARY, size=length) for length in lengths]


def make_batches(token_ids: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]], budget: int) -> list[ScheduledBatch]:
    groups: list[list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = [[]]
    tokens = 0
    for ids in token_ids:
        if tokens + len(ids) > budget:
            groups.append([])
            tokens = 0
        groups[-1].append(ids)
        tokens += len(ids)
    return list(map(_make_batch, groups))


def _make_batch(token_ids: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> ScheduledBatch:
    lengths = np.array(list(map(len, token_ids)))
    inputs = TokenizedInputs.from_ids(np.concatenate(token_ids).astype(np.int32), lengths, lengths)
    group = SequenceGroup(inputs, np.arange(len(lengths)), (PoolingSpec("embed", PoolingOptions()),), NullReceiver())
    return ScheduledBatch([GroupSlice(group, 0, len(lengths))])


def run_batches(executor: Executor, batches: Sequence[ScheduledBatch]) -> list[BatchOutput]:
    """Run batches with the next one started before the previous is read, as the engine loop does."""
    outputs: list[BatchOutput] = []
    pending: Callable[[], BatchOutput] | None = None
    for batch in batches:
        started = executor.start(batch)
        if pending is not None:
            outputs.append(pending())
        pending = started
    return [*outputs, *([] if pending is None else [pending()])]


def concat_vectors(outputs: Sequence[BatchOutput]) -> Tensor:
    assert not any(output.failed_indices for output in outputs), "no sequence may fail"
    return torch.from_numpy(np.concatenate([rows.values for output in outputs for rows in output.rows.values()]))


def measure_peak_tflops() -> float:
    """Measure TFLOP/s of a large bfloat16 matrix product, used as the peak."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = [_time_on_device(lambda: a @ b, 10) for _ in range(5)]
    return float(2 * 8192**3 / min(seconds) / 1e12)


def _time_on_device(run: Callable[[], object], times: int) -> float:
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def measure_speed(
    llm: LLM, name: str, shape: ModelShape, workloads: Sequence[str], rounds: int, peak: float, levels: Sequence[str]
) -> list[GpuResult]:
    """Measure all workloads and levels in interleaved rounds, so that clock drift affects all equally."""
    budget, executor = llm.engine.core.loop.scheduler.token_budget, llm.engine.core.loop.executor
    rng = np.random.default_rng(0)
    runs: dict[tuple[str, str], tuple[Callable[[], object], int]] = {}
    for workload in workloads:
        ids = draw_token_ids(draw_lengths(workload, budget, rng), rng)
        tokens = sum(map(len, ids))
        batches = make_batches(ids, budget)
        if "executor" in levels:
            runs["executor", workload] = (lambda batches=batches: run_batches(executor, batches)), tokens  # type: ignore[misc]
        if "LLM" in levels:
            prompts = [row.tolist() for row in ids]
            runs["LLM", workload] = (lambda prompts=prompts: llm.embed(prompts, use_tqdm=False)), tokens  # type: ignore[misc]
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    gc.collect()
    gc.freeze()  # keep the generated token ids out of garbage collection
    for number in range(rounds + 1):  # the first round is a warmup
        for key, (run, _) in runs.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[key].append(time.perf_counter() - start)
    gc.unfreeze()
    figures = []
    for (level, workload), (_, tokens) in runs.items():
        took = seconds[level, workload]
        speed = tokens / median(took)
        spread = (max(took) - min(took)) / median(took)
        share = speed * shape.flop_per_token / peak / 1e12
        figures.append(GpuResult(name, level, workload, speed / 1e6, spread, share))
    return figures


def measure_query_latency(llm: LLM, times: int = 300) -> float:
    """Return the median milliseconds from the token ids of one query to its vector, through the executor."""
    rng = np.random.default_rng(1)
    (batch,) = make_batches(draw_token_ids([QUERY_TOKENS], rng), 4096)
    took = []
    for _ in range(times):
        start = time.perf_counter()
        llm.engine.core.loop.executor.start(batch)()
        took.append(time.perf_counter() - start)
    return median(took) * 1e3


def compare_vectors(llm: LLM, reference: LLM) -> tuple[float, float]:
    """Cosines of vectors with those of another engine: the mean and the worst."""
    rng = np.random.default_rng(2)
    batches = make_batches(draw_token_ids([20] * 64 + [50] * 64 + [128] * 32 + [512] * 16, rng), 16384)
    ours, theirs = (
        concat_vectors(run_batches(each.engine.core.loop.executor, batches)).float() for each in (llm, reference)
    )
    cosines = torch.nn.functional.cosine_similarity(ours, theirs)
    return float(cosines.mean()), float(cosines.min())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.gpu", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), help="model shapes to run (default: all)")
    parser.add_argument("--lengths", nargs="+", help="tokens per text, or mixed (default: by shape)")
    parser.add_argument("--levels", nargs="+", default=["executor", "LLM"], choices=["executor", "LLM"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results to a JSON file")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device available", file=sys.stderr)
        return 1
    peak = measure_peak_tflops()
    print(f"{torch.cuda.get_device_name()}: {peak:.0f} TFLOP/s in a large bfloat16 matrix product")
    report: dict[str, object] = {"device": torch.cuda.get_device_name(), "peak_tflops": peak}
    figures: list[GpuResult] = []
    notes: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, quantization, lengths in DEFAULT_RUNS:
            if options.shapes and name not in options.shapes:
                continue
            own = _measure_model(Path(folder), name, quantization, options.lengths or lengths, options, peak, notes)
            figures += own
            for figure in own:
                print(_format_result(figure), flush=True)
            print(f"{own[0].model:20} {json.dumps(notes[own[0].model])}", flush=True)
    if options.json:
        report.update(figures=[asdict(figure) for figure in figures], notes=notes)
        options.json.write_text(json.dumps(report, indent=1))
    return 0


def _measure_model(
    folder: Path,
    name: str,
    quantization: str | None,
    lengths: Sequence[str],
    options: argparse.Namespace,
    peak: float,
    notes: dict[str, dict[str, object]],
) -> list[GpuResult]:
    shape, path = SHAPES[name], folder / name
    if not path.exists():
        write_checkpoint(path, shape, "cuda")
    label = f"{name} {quantization or 'bf16'}"
    load = partial(LLM, str(path), device="cuda", pooler_config={"pooling_type": "MEAN"})
    with load(dtype="bfloat16", quantization=cast("Quantization | None", quantization)) as llm:
        figures = measure_speed(llm, label, shape, lengths, options.rounds, peak, options.levels)
        notes[label] = {"query_ms": round(measure_query_latency(llm), 3)}
        with load(dtype="float32") as exact:
            mean, worst = compare_vectors(llm, exact)
        notes[label].update(cosine_mean=round(mean, 6), cosine_worst=round(worst, 6))
    gc.collect()
    torch.cuda.empty_cache()
    return figures


def _format_result(figure: GpuResult) -> str:
    return (
        f"{figure.model:20} {figure.level:9} {figure.workload:>6} tokens  "
        f"{figure.mega_tokens_per_second:6.3f} M tok/s  ±{figure.spread:4.0%}  {figure.share_of_peak:4.0%} of peak"
    )


if __name__ == "__main__":
    sys.exit(main())
