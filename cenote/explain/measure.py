"""Measure all parts in interleaved rounds, so that interference affects all of them equally."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import median

import torch

from cenote.engine.engine import PoolingEngine
from cenote.engine.execution.executor import EchoExecutor
from cenote.errors import Unsupported
from cenote.explain import hardware
from cenote.explain.flops import ModelFlops, count_flops
from cenote.explain.microbenchmarks import BenchmarkFn, MatMulBenchmark
from cenote.explain.resolved_settings import iter_settings, make_linear_factory, resolve_settings
from cenote.explain.results import ExplainResults, HardwareInfo
from cenote.explain.single_text import SingleTextTime, measure_single_texts
from cenote.explain.timing import MeasuredValue, time_call
from cenote.explain.workload import ProbeWorkload, TextGenerator, make_random_batch
from cenote.explain.workload_probe import WorkloadProbe, fused_block_rows, pool_states, run_backbone
from cenote.kernels.cpu_features import cpu_name
from cenote.layers.torch_dtypes import to_torch_device
from cenote.llm import LLM
from cenote.utils.system_limits import count_cpus

LENGTHS = (16, 50, 128, 512)
ROUNDS = 5  # planned rounds; a fast machine runs more
MAX_ROUNDS = 25
SINGLE_TEXT_TOKENS = 16  # length of the single text
SINGLES_PER_ROUND = 9  # single texts per round
# shares of the time of a workload in one round: the end-to-end run, and the model alone
RUN_SHARE, MODEL_SHARE = 0.4, 0.2
# smaller batches are not representative, even if this one exceeds the time
MIN_BATCH_FLOPS = 2e10
# batches of an end-to-end run: enough that start and end are negligible
MAX_RUN_BATCHES = 12


def measure_model(llm: LLM, lengths: Sequence[int] = LENGTHS, duration: float = 15.0) -> ExplainResults:
    """Run for about `duration` seconds, longer if a single batch takes long."""
    began = time.perf_counter()
    engine = llm.engine
    if engine.model.description.architecture.is_static:
        raise Unsupported("static embeddings have no layers to measure; their time is that of tokenization")
    device = to_torch_device(engine.model.description.device.value)
    lengths = sorted({min(length, engine.max_model_len) for length in lengths})
    echo = PoolingEngine(engine.model, engine.config, EchoExecutor())
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return ModelMeasurement(llm, echo, lengths).run(began, duration)
    finally:
        echo.stop()


class ModelMeasurement:
    def __init__(self, llm: LLM, echo: PoolingEngine, lengths: Sequence[int]) -> None:
        self.engine, self.echo, self.task = llm.engine, echo, llm.pooling_task
        self.description = llm.engine.model.description
        self.device = to_torch_device(self.description.device.value)
        self.resolved = resolve_settings(self.engine)
        self.model_flops: ModelFlops = count_flops(self.engine.model, self.task)
        self.linear_factory = make_linear_factory(self.engine)
        self.matmuls = MatMulBenchmark(self.model_flops, self.linear_factory)
        words, longest = TextGenerator(self.engine), self.engine.max_model_len
        self.workloads = [ProbeWorkload(words, length, longest) for length in (*lengths, None)]
        self.single_workload = ProbeWorkload(words, min(SINGLE_TEXT_TOKENS, longest), longest)
        self.gemm, self.copies = hardware.GemmBenchmark(self.linear_factory), hardware.make_copy_benchmarks(self.device)
        self.rates: dict[str, list[float]] = {name: [] for name in self.gemm.benchmarks}
        self.copy_rates: dict[str, list[float]] = {name: [] for name in self.copies}
        self.single_texts: list[SingleTextTime] = []
        self.larger_batch_gains: list[float] = []
        self.dtype_gains: dict[str, list[float]] = {}

    def run(self, began: float, duration: float) -> ExplainResults:
        each = duration / (ROUNDS * len(self.workloads))  # per workload and round
        speed = self._estimate_speed()
        probes = [self._make_probe(workload, speed, each) for workload in self.workloads]
        for work in (*self.gemm.benchmarks.values(), *self.copies.values()):
            work()
        larger, others = self._larger_batches(speed, each), self._alternatives()
        probes[0].run(at_least=0.0)  # warm-up
        probes[0].rounds.clear()
        probes[0].run_batches.clear()
        started, rounds = time.perf_counter(), 0
        while rounds < MAX_ROUNDS and _has_time(began, started, rounds, duration):
            self._measure_hardware()
            for probe in probes:
                probe.run(at_least=each * 0.02)
            if larger is not None:
                now, wide = (time_call(work, self.device) / tokens for tokens, work in larger)
                self.larger_batch_gains.append(now / wide)
            for name, works in others.items():
                now, then = (time_call(work, self.device, at_least=each * 0.02) for work in works)
                self.dtype_gains.setdefault(name, []).append(now / then)
            texts = self.single_workload.make_texts(SINGLES_PER_ROUND)
            self.single_texts.append(measure_single_texts(self.engine, self.task, texts))
            rounds += 1
        return self._make_results(probes, rounds, time.perf_counter() - began)

    def _make_probe(self, workload: ProbeWorkload, speed: float, each: float) -> WorkloadProbe:
        budget = self.resolved.budget
        telling = MIN_BATCH_FLOPS / self.model_flops.flops_per_token(workload.mean_length)
        affordable = speed * max(each * MODEL_SHARE, min(telling / speed, each / 3)) / workload.num_batches
        batch_tokens = max(workload.mean_length, min(budget, int(affordable)))
        run_tokens = max(batch_tokens, min(MAX_RUN_BATCHES * budget, int(speed * each * RUN_SHARE)))
        return WorkloadProbe(
            workload,
            self.engine,
            self.echo,
            self.model_flops,
            self.matmuls,
            task=self.task,
            batch_tokens=batch_tokens,
            max_sequences=self.resolved.max_num_seqs,
            run_tokens=run_tokens,
        )

    def _estimate_speed(self) -> float:
        """Estimate tokens/s of the model, to choose batch sizes."""
        length, vocabulary = self.workloads[0].mean_length, self.description.architecture.backbone.vocab_size
        batch = make_random_batch([length] * max(1, 512 // length), vocabulary, self.device)

        def run() -> None:
            pool_states(self.engine, self.task, run_backbone(self.engine, batch), batch)

        run()  # warm-up
        return batch.num_tokens / median(time_call(run, self.device, at_least=0.02) for _ in range(5))

    def _larger_batches(self, speed: float, each: float) -> list[tuple[int, BenchmarkFn]] | None:
        """Compare the linear layers at the token budget and at four times the budget, if that fits the time."""
        budget = self.resolved.budget
        if not self.matmuls.layers or 5 * budget > speed * each:
            return None
        try:
            works = [(tokens, self.matmuls.make_benchmark(tokens)) for tokens in (budget, 4 * budget)]
            for _, work in works:
                work()
        except torch.OutOfMemoryError:
            return None  # no advice then
        return works

    def _alternatives(self) -> dict[str, tuple[BenchmarkFn, BenchmarkFn]]:
        """Compare the model's linear layers with each dtype in which a large GEMM is faster."""
        own = self.resolved.quantization or self.resolved.dtype
        if own not in self.gemm.benchmarks or self.resolved.quantization is not None:
            return {}
        rate, found = self.gemm.rate(own), {}
        tokens = max(1, min(self.resolved.budget, int(MIN_BATCH_FLOPS / max(1, self.model_flops.matmul_flops()))))
        at_once = fused_block_rows(self.resolved.fused)
        for name in self.gemm.benchmarks:
            if name not in (own, "float16") and self.gemm.rate(name) > rate:  # activations may overflow float16
                other = MatMulBenchmark(self.model_flops, hardware.with_dtype(name, self.linear_factory))
                found[name] = (self.matmuls.make_benchmark(tokens, at_once), other.make_benchmark(tokens, at_once))
                for work in found[name]:
                    work()
        return found

    def _measure_hardware(self) -> None:
        for name in self.gemm.benchmarks:
            self.rates[name].append(self.gemm.rate(name))
        for name, work in self.copies.items():
            times = 2 if name == "copy" else 1  # read and write
            self.copy_rates[name].append(times * hardware.COPY_BYTES / time_call(work, self.device))

    def _peak_rates(self, probes: Sequence[WorkloadProbe], rounds: int) -> list[float]:
        """Return the best rate of every round, of the large GEMM or the model's own layers."""
        large = self.rates.get(self.resolved.quantization or self.resolved.dtype) or [0.0] * rounds
        return [max(large[number], *(probe.rounds[number].rate for probe in probes)) for number in range(rounds)]

    def _make_results(self, probes: Sequence[WorkloadProbe], rounds: int, took: float) -> ExplainResults:
        peaks = self._peak_rates(probes, rounds)
        copied = {name: MeasuredValue.from_samples(samples) for name, samples in self.copy_rates.items()}
        on_gpu = self.device.type == "cuda"
        shortest = probes[0].workload.mean_length
        return ExplainResults(
            model=self.description.name,
            task=self.task,
            weights=self.model_flops.num_weights(),
            complete=self.model_flops.is_complete,
            machine=HardwareInfo(
                processor=cpu_name(),
                cores=count_cpus(),
                threads=torch.get_num_threads(),
                torch=torch.__version__,
                gpu=torch.cuda.get_device_name(self.device) if on_gpu else None,
                gpu_bytes=torch.cuda.get_device_properties(self.device).total_memory if on_gpu else None,
                gemm={kind: MeasuredValue.from_samples(samples) for kind, samples in self.rates.items()},
                **copied,
            ),
            chosen=self.resolved,
            settings=tuple(iter_settings(self.engine, self.resolved)),
            readings=tuple(probe.make_result(peaks, copied["copy"].value) for probe in probes),
            tokenizer=MeasuredValue.from_samples(
                1 / each.parts["tokenising"] for probe in probes[-1:] for each in probe.rounds
            ),
            per_input=MeasuredValue.from_samples(each.parts["engine"] * shortest for each in probes[0].rounds),
            single=MeasuredValue.from_samples(each.total for each in self.single_texts),
            single_parts={
                name: MeasuredValue.from_samples(getattr(each, name) for each in self.single_texts)
                for name in ("model", "tokenizer", "engine")
            },
            alternatives={name: MeasuredValue.from_samples(samples) for name, samples in self.dtype_gains.items()},
            larger_batches=MeasuredValue.from_samples(self.larger_batch_gains) if self.larger_batch_gains else None,
            rounds=rounds,
            seconds=took,
        )


def _has_time(began: float, started: float, rounds: int, duration: float) -> bool:
    """Return whether another round fits the time; a second round always runs, to measure the spread."""
    now = time.perf_counter()
    if rounds == 0:
        return True
    return now - began + (now - started) / rounds < (1.5 * duration if rounds == 1 else duration)
