"""Measure one workload end to end, and each of its parts alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cenote.engine.engine import PoolingEngine
from cenote.errors import PoolingError
from cenote.explain.flops import ModelFlops
from cenote.explain.microbenchmarks import BenchmarkFn, MatMulBenchmark, make_attention_benchmark
from cenote.explain.resolved_settings import find_fused_encoder
from cenote.explain.results import TIME_PARTS, WorkloadResult
from cenote.explain.timing import MeasuredValue, time_call
from cenote.explain.workload import ProbeWorkload, make_random_batch, split_into_batches
from cenote.layers.torch_dtypes import to_torch_device
from cenote.packed_batch import PackedBatch
from cenote.pooling.ops import Rows
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import Task, TokenizationParams
from cenote.protocol.requests import PoolRequest

# tokens of the texts for measuring the host's part
HOST_BENCHMARK_TOKENS = 16_384
# rows that stay in a core's cache in fused layers
FUSED_ROWS_PER_THREAD = 256


@dataclass(frozen=True, slots=True)
class ProbeRound:
    """Seconds per token of all parts in one round."""

    rate: float  # FLOP/s of the model's own linear layers
    total: float  # end to end
    parts: dict[str, float]

    @property
    def model_total(self) -> float:
        return sum(self.parts[name] for name in ("products", "attention", "rest", "pooling"))

    @property
    def shares(self) -> dict[str, float]:
        total = sum(self.parts.values())
        return {name: part / total for name, part in self.parts.items()}


def run_backbone(engine: PoolingEngine, batch: PackedBatch) -> Rows:
    with torch.inference_mode():
        return engine.model.backbone(for_runtime(engine, batch))


def pool_states(engine: PoolingEngine, task: Task, states: Rows, batch: PackedBatch) -> object:
    """Return the results on the host."""
    asked, pooler = (PoolingSpec(task, engine.plan.resolve_options(task, None)),), engine.model.pooler
    with torch.inference_mode():
        groups = pooler(states, for_runtime(engine, batch), [asked] * batch.num_seqs)
        return [pooler.ops.to_host(group.rows) for group in groups]


def for_runtime(engine: PoolingEngine, batch: PackedBatch) -> PackedBatch[Any]:
    """Return a batch of tensors with the arrays of the runtime of a model."""
    if engine.model.description.runtime.value == "torch":
        return batch
    columns = {name: getattr(batch, name).numpy() for name in ("token_ids", "positions", "cu_seqlens")}
    return PackedBatch(**columns, seq_lens_cpu=batch.seq_lens_cpu)


def fused_block_rows(is_fused: bool) -> int | None:
    return FUSED_ROWS_PER_THREAD * torch.get_num_threads() if is_fused else None


def split_backbone_time(backbone: float, products: float, attention: float) -> tuple[float, float, float]:
    """Split the backbone time into products, attention and other; scale the parts if they exceed the total."""
    shrink = min(1.0, backbone / (products + attention)) if products + attention else 1.0
    products, attention = products * shrink, attention * shrink
    return products, attention, max(0.0, backbone - products - attention)


class WorkloadProbe:
    def __init__(
        self,
        workload: ProbeWorkload,
        engine: PoolingEngine,
        echo: PoolingEngine,
        arithmetic: ModelFlops,
        products: MatMulBenchmark,
        *,
        task: Task,
        batch_tokens: int,
        max_sequences: int,
        run_tokens: int,
    ) -> None:
        self.workload = workload
        self.engine = engine
        self.echo = echo  # an engine with an EchoExecutor
        self.model_flops = arithmetic
        self.matmuls = products
        self.task: Task = task
        self.num_run_texts = max(1, run_tokens // workload.mean_length)
        # the cost per request is distributed over its inputs, as in long runs
        self.num_host_texts = max(64, min(512, HOST_BENCHMARK_TOKENS // workload.mean_length))
        self.device = to_torch_device(self.engine.model.description.device.value)
        self.lengths = workload.make_batches(batch_tokens, max_sequences)
        self.vocabulary = self.engine.model.description.architecture.backbone.vocab_size
        self.batches = [make_random_batch(lengths, self.vocabulary, self.device) for lengths in self.lengths]
        self.rounds: list[ProbeRound] = []
        self.run_batches: list[float] = []  # mean tokens per batch of the end-to-end run, per round
        self._benchmarks = self._make_benchmarks()

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)

    def run(self, at_least: float) -> None:
        """Run one round; every measurement is repeated for at least that many seconds."""
        alone = {
            name: sum(time_call(work, self.device, at_least=at_least / len(works)) for work in works) / self.num_tokens
            for name, works in self._benchmarks.items()
        }
        shares = split_backbone_time(alone["backbone"], alone["products"], alone.get("attention", 0.0))
        before = _count_batches(self.engine)
        whole, tokens = self._time_texts(self.engine, self.workload.make_texts(self.num_run_texts))
        count, total = (after - earlier for after, earlier in zip(_count_batches(self.engine), before, strict=True))
        self.run_batches.append(total / max(1, count))
        texts = self.workload.make_texts(self.num_host_texts)
        tokenising = time_call(lambda: self.engine.tokenizer.encode(texts), torch.device("cpu"))
        answering, read = self._time_texts(self.echo, texts)
        parts = dict(zip(("products", "attention", "rest"), shares, strict=True)) | {
            "pooling": alone["pooling"],
            "tokenising": tokenising / read,
            "engine": max(0.0, answering - tokenising) / read,
        }
        self.rounds.append(ProbeRound(self.matmuls.flops / alone["products"], whole / tokens, parts))

    def make_result(self, peaks: Sequence[float], copied_bytes: float) -> WorkloadResult:
        """Compute the result from the best GEMM rate of every round and the memory bandwidth."""
        lengths = [length for batch in self.lengths for length in batch]
        flops = self.model_flops.total_flops(lengths) / sum(lengths)
        batch_tokens = self.num_tokens // len(self.batches)
        itemsize = self.matmuls.dtype.itemsize
        shares = {
            name: MeasuredValue.from_samples(each.shares[name] for each in self.rounds).value for name in TIME_PARTS
        }
        return WorkloadResult(
            name=self.workload.name,
            mean_length=sum(lengths) / len(lengths),
            batch_tokens=batch_tokens,
            flops_per_token=flops,
            light=MeasuredValue.from_samples(peak / flops for peak in peaks),
            memory_light=(
                copied_bytes / self.model_flops.bytes_per_token(itemsize, batch_tokens)
                if self.device.type == "cuda"
                else None
            ),
            reached=MeasuredValue.from_samples(1 / each.total for each in self.rounds),
            of_light=MeasuredValue.from_samples(
                flops / each.total / peak for each, peak in zip(self.rounds, peaks, strict=True)
            ),
            own_rate=MeasuredValue.from_samples(each.rate for each in self.rounds),
            shares={name: share / sum(shares.values()) for name, share in shares.items()},
            model_time=MeasuredValue.from_samples(each.model_total / each.total for each in self.rounds),
            run_batch_tokens=sum(self.run_batches) / len(self.run_batches),
        )

    def _time_texts(self, engine: PoolingEngine, texts: Sequence[str]) -> tuple[float, int]:
        """Return seconds and prompt tokens."""
        tokens = 0

        def run() -> None:
            nonlocal tokens
            request = PoolRequest(
                task=self.task, inputs=texts, prompt="", tokenization=TokenizationParams(truncate_prompt_tokens=-1)
            )
            results = [result for result in engine.pool_sync(request) if not isinstance(result, PoolingError)]
            tokens = sum(len(result.token_ids) for result in results)

        return time_call(run, torch.device("cpu")), tokens

    def _make_batches(self, lengths: list[int], at_once: int | None) -> list[PackedBatch]:
        parts = [lengths] if at_once is None else split_into_batches(lengths, at_once, len(lengths))
        return [make_random_batch(part, self.vocabulary, self.device) for part in parts]

    def _make_benchmarks(self) -> dict[str, list[BenchmarkFn]]:
        engine, dtype = self.engine, self.matmuls.dtype
        states = [run_backbone(engine, batch) for batch in self.batches]
        # fused layers process a few rows at a time through all layers
        at_once = fused_block_rows(find_fused_encoder(engine.model.backbone) is not None)
        attention = [
            make_attention_benchmark(
                self.model_flops.attentions, self._make_batches(lengths, at_once), dtype, self.device
            )
            for lengths in self.lengths
        ]
        works: dict[str, list[BenchmarkFn]] = {
            "backbone": [lambda batch=batch: run_backbone(engine, batch) for batch in self.batches],  # type: ignore[misc]
            "products": [self.matmuls.make_benchmark(batch.num_tokens, at_once) for batch in self.batches],
            "attention": [work for work in attention if work is not None],
            "pooling": [
                lambda each=each, batch=batch: pool_states(engine, self.task, each, batch)  # type: ignore[misc]
                for each, batch in zip(states, self.batches, strict=True)
            ],
        }
        for name, several in works.items():
            for work in several if name != "backbone" else ():  # has run already
                work()  # warm-up
        return {name: several for name, several in works.items() if several}


def _count_batches(engine: PoolingEngine) -> tuple[int, float]:
    """Return the number of batches an engine has run, and their tokens."""
    families = {family.name: family for family in asyncio.run(engine.collect_metrics())}
    seen = families["cenote_batch_tokens"].series
    return sum(sum(each.counts) for each in seen), sum(each.value for each in seen)
