"""One workload, measured: a real run, and by itself each part of what happens in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cenote.engine.engine import PoolingEngine
from cenote.errors import PoolingError
from cenote.explain.flops import Arithmetic
from cenote.explain.microbenchmarks import Products, Work, attention_work, batch_of
from cenote.explain.resolved_settings import is_fused
from cenote.explain.results import PARTS, Reading
from cenote.explain.timing import Figure, seconds
from cenote.explain.workload import Workload, fitting
from cenote.packed_batch import PackedBatch
from cenote.pooling.pooler import Ask
from cenote.protocol.requests import PoolRequest, Task, Tokenization

# tokens of the texts that the host's part of the work is measured with
READ_TOKENS = 16_384
# rows of states that a core keeps near while fused layers work on them
CACHED_ROWS = 256


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds for one token, of everything, within a short time."""

    rate: float  # FLOP/s of the model's own linear layers
    whole: float  # a real run, from texts to answers
    parts: dict[str, float]

    @property
    def model(self) -> float:
        return sum(self.parts[name] for name in ("products", "attention", "rest", "pooling"))

    @property
    def shares(self) -> dict[str, float]:
        total = sum(self.parts.values())
        return {name: part / total for name, part in self.parts.items()}


def states_of(engine: PoolingEngine, batch: PackedBatch) -> torch.Tensor:
    with torch.inference_mode():
        states: torch.Tensor = engine.model.backbone(batch)
        return states


def pooled(engine: PoolingEngine, task: Task, states: torch.Tensor, batch: PackedBatch) -> object:
    """The answers, on the host."""
    asked = (Ask(task, engine.plan.options(task, None)),)
    with torch.inference_mode():
        return [group.rows.cpu() for group in engine.model.pooler(states, batch, [asked] * batch.size)]


def rows_at_once(fused: bool) -> int | None:
    return CACHED_ROWS * torch.get_num_threads() if fused else None


def split(backbone: float, products: float, attention: float) -> tuple[float, float, float]:
    """Products, attention and the rest of a backbone; pieces that are faster together cannot be more than the whole."""
    shrink = min(1.0, backbone / (products + attention)) if products + attention else 1.0
    products, attention = products * shrink, attention * shrink
    return products, attention, max(0.0, backbone - products - attention)


class Probe:
    def __init__(
        self,
        workload: Workload,
        engine: PoolingEngine,
        echo: PoolingEngine,
        arithmetic: Arithmetic,
        products: Products,
        *,
        task: Task,
        batch_tokens: int,
        max_sequences: int,
        run_tokens: int,
    ) -> None:
        self.workload = workload
        self.engine = engine
        self.echo = echo  # an engine whose model does nothing
        self.arithmetic = arithmetic
        self.products = products
        self.task: Task = task
        self.run_texts = max(1, run_tokens // workload.mean_length)
        # a request costs something as well: inputs share it as they do in long runs
        self.read_texts = max(64, min(512, READ_TOKENS // workload.mean_length))
        self.device = self.engine.model.description.device.value
        self.lengths = workload.batches(batch_tokens, max_sequences)
        self.vocabulary = self.engine.model.description.architecture.backbone.vocab_size
        self.packed = [batch_of(lengths, self.vocabulary, self.device) for lengths in self.lengths]
        self.rounds: list[Round] = []
        self.run_batches: list[float] = []  # tokens of the batches of real runs, a mean for each round
        self._work = self._works()

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.packed)

    def run(self, at_least: float) -> None:
        """One more round; every piece of work repeated until it has taken so many seconds."""
        alone = {
            name: sum(seconds(work, self.device, at_least=at_least / len(works)) for work in works) / self.num_tokens
            for name, works in self._work.items()
        }
        shares = split(alone["backbone"], alone["products"], alone.get("attention", 0.0))
        before = _batches(self.engine)
        whole, tokens = self._answered(self.engine, self.workload.texts(self.run_texts))
        count, total = (after - earlier for after, earlier in zip(_batches(self.engine), before, strict=True))
        self.run_batches.append(total / max(1, count))
        texts = self.workload.texts(self.read_texts)
        tokenising = seconds(lambda: self.engine.tokenizer.encode(texts), torch.device("cpu"))
        answering, read = self._answered(self.echo, texts)
        parts = dict(zip(("products", "attention", "rest"), shares, strict=True)) | {
            "pooling": alone["pooling"],
            "tokenising": tokenising / read,
            "engine": max(0.0, answering - tokenising) / read,
        }
        self.rounds.append(Round(self.products.flops / alone["products"], whole / tokens, parts))

    def reading(self, peaks: Sequence[float], copied_bytes: float) -> Reading:
        """With the best rate of matrix products in every round, and what memory moves in a second."""
        lengths = [length for batch in self.lengths for length in batch]
        flops = self.arithmetic.flops_of(lengths) / sum(lengths)
        batch_tokens = self.num_tokens // len(self.packed)
        itemsize = self.products.dtype.itemsize
        shares = {name: Figure.of(each.shares[name] for each in self.rounds).value for name in PARTS}
        return Reading(
            name=self.workload.name,
            mean_length=sum(lengths) / len(lengths),
            batch_tokens=batch_tokens,
            flops_per_token=flops,
            light=Figure.of(peak / flops for peak in peaks),
            memory_light=(
                copied_bytes / self.arithmetic.moved(itemsize, batch_tokens) if self.device.type == "cuda" else None
            ),
            reached=Figure.of(1 / each.whole for each in self.rounds),
            of_light=Figure.of(flops / each.whole / peak for each, peak in zip(self.rounds, peaks, strict=True)),
            own_rate=Figure.of(each.rate for each in self.rounds),
            shares={name: share / sum(shares.values()) for name, share in shares.items()},
            model_time=Figure.of(each.model / each.whole for each in self.rounds),
            run_batch_tokens=sum(self.run_batches) / len(self.run_batches),
        )

    def _answered(self, engine: PoolingEngine, texts: Sequence[str]) -> tuple[float, int]:
        """Seconds, and the tokens that the model read."""
        tokens = 0

        def run() -> None:
            nonlocal tokens
            request = PoolRequest(
                task=self.task, inputs=texts, prompt="", tokenization=Tokenization(truncate_prompt_tokens=-1)
            )
            answers = [each for each in engine.pool_sync(request) if not isinstance(each, PoolingError)]
            tokens = sum(len(each.token_ids) for each in answers)

        return seconds(run, torch.device("cpu")), tokens

    def _pieces(self, lengths: list[int], at_once: int | None) -> list[PackedBatch]:
        parts = [lengths] if at_once is None else fitting(lengths, at_once, len(lengths))
        return [batch_of(part, self.vocabulary, self.device) for part in parts]

    def _works(self) -> dict[str, list[Work]]:
        engine, dtype = self.engine, self.products.dtype
        states = [states_of(engine, batch) for batch in self.packed]
        # fused layers take a few rows through all of them while these are in a cache
        at_once = rows_at_once(is_fused(engine.model.backbone))
        attention = [
            attention_work(self.arithmetic.mixings, self._pieces(lengths, at_once), dtype, self.device)
            for lengths in self.lengths
        ]
        works: dict[str, list[Work]] = {
            "backbone": [lambda batch=batch: states_of(engine, batch) for batch in self.packed],  # type: ignore[misc]
            "products": [self.products.work(batch.num_tokens, at_once) for batch in self.packed],
            "attention": [work for work in attention if work is not None],
            "pooling": [
                lambda each=each, batch=batch: pooled(engine, self.task, each, batch)  # type: ignore[misc]
                for each, batch in zip(states, self.packed, strict=True)
            ],
        }
        for name, several in works.items():
            for work in several if name != "backbone" else ():  # which has run already
                work()  # the first of its kind is never as fast as the next
        return {name: several for name, several in works.items() if several}


def _batches(engine: PoolingEngine) -> tuple[int, float]:
    """How many batches an engine has run so far, and their tokens."""
    families = {family.name: family for family in asyncio.run(engine.statistics())}
    seen = families["cenote_batch_tokens"].series
    return sum(sum(each.counts) for each in seen), sum(each.value for each in seen)
