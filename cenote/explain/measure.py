"""Everything is measured in turns, several rounds of it: whatever the machine does meanwhile, it does to all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import median

import torch

from cenote.engine.engine import PoolingEngine
from cenote.engine.execution.executor import EchoExecutor
from cenote.explain import hardware
from cenote.explain.flops import Arithmetic, arithmetic
from cenote.explain.microbenchmarks import Products, Work, batch_of
from cenote.explain.resolved_settings import chosen, linears, settings
from cenote.explain.results import Findings, Machine
from cenote.explain.timing import Figure, seconds
from cenote.explain.workload import Words, Workload
from cenote.explain.workload_probe import Probe, pooled, rows_at_once, states_of
from cenote.kernels.cpu_features import cpu_name
from cenote.llm import LLM
from cenote.protocol.requests import PoolRequest

LENGTHS = (16, 50, 128, 512)
ROUNDS = 5  # that the time is shared out for; a fast machine has more of them
MOST_ROUNDS = 25
SINGLE = 16  # tokens of the text that is sent alone
SINGLES = 5  # of them in every round
# of the time of a workload in one round: for a real run, and for the model by itself
RUN_SHARE, MODEL_SHARE = 0.4, 0.2
# a smaller batch tells little: it may take longer than that
LEAST_FLOPS = 2e10
# a real run has this many batches at most: enough that its beginning and its end do not count
RUN_BATCHES = 12


def measure(llm: LLM, lengths: Sequence[int] = LENGTHS, duration: float = 15.0) -> Findings:
    """Takes about that many seconds, more where a single batch takes long."""
    began = time.perf_counter()
    engine = llm.engine
    device = engine.model.description.device.value
    lengths = sorted({min(length, engine.max_model_len) for length in lengths})
    echo = PoolingEngine(engine.model, engine.config, EchoExecutor())
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return Measuring(llm, echo, lengths).run(began, duration)
    finally:
        echo.stop()


class Measuring:
    def __init__(self, llm: LLM, echo: PoolingEngine, lengths: Sequence[int]) -> None:
        self.engine, self.echo, self.task = llm.engine, echo, llm.pooling_task
        self.description = llm.engine.model.description
        self.device = self.description.device.value
        self.chosen = chosen(self.engine)
        self.arithmetic: Arithmetic = arithmetic(self.engine.model, self.task)
        self.linears = linears(self.engine)
        self.products = Products(self.arithmetic, self.linears)
        words, longest = Words(self.engine), self.engine.max_model_len
        self.workloads = [Workload(words, length, longest) for length in (*lengths, None)]
        self.alone = Workload(words, min(SINGLE, longest), longest)
        self.gemm, self.copies = hardware.Gemm(self.linears), hardware.copies(self.device)
        self.rates: dict[str, list[float]] = {name: [] for name in self.gemm.work}
        self.copied: dict[str, list[float]] = {name: [] for name in self.copies}
        self.singles: list[float] = []
        self.larger: list[float] = []
        self.faster: dict[str, list[float]] = {}

    def run(self, began: float, duration: float) -> Findings:
        each = duration / (ROUNDS * len(self.workloads))  # for one workload in one round
        speed = self._first_speed()
        probes = [self._probe(workload, speed, each) for workload in self.workloads]
        for work in (*self.gemm.work.values(), *self.copies.values()):
            work()
        larger, others = self._larger_batches(speed, each), self._alternatives()
        probes[0].run(at_least=0.0)  # the first round of all wakes threads and fills caches
        probes[0].rounds.clear()
        probes[0].run_batches.clear()
        started, rounds = time.perf_counter(), 0
        while rounds < MOST_ROUNDS and _has_time(began, started, rounds, duration):
            self._machine_round()
            for probe in probes:
                probe.run(at_least=each * 0.02)
            if larger is not None:
                now, wide = (seconds(work, self.device) / tokens for tokens, work in larger)
                self.larger.append(now / wide)
            for name, works in others.items():
                now, then = (seconds(work, self.device, at_least=each * 0.02) for work in works)
                self.faster.setdefault(name, []).append(now / then)
            self.singles.append(self._single())
            rounds += 1
        return self._findings(probes, rounds, time.perf_counter() - began)

    def _probe(self, workload: Workload, speed: float, each: float) -> Probe:
        budget = self.chosen.budget
        telling = LEAST_FLOPS / self.arithmetic.flops(workload.mean_length)
        affordable = speed * max(each * MODEL_SHARE, min(telling / speed, each / 3)) / workload.num_batches
        batch_tokens = max(workload.mean_length, min(budget, int(affordable)))
        run_tokens = max(batch_tokens, min(RUN_BATCHES * budget, int(speed * each * RUN_SHARE)))
        return Probe(
            workload,
            self.engine,
            self.echo,
            self.arithmetic,
            self.products,
            task=self.task,
            batch_tokens=batch_tokens,
            max_sequences=self.chosen.max_num_seqs,
            run_tokens=run_tokens,
        )

    def _first_speed(self) -> float:
        """Tokens/s of the model, roughly: how large pieces of work may be."""
        length, vocabulary = self.workloads[0].mean_length, self.description.architecture.backbone.vocab_size
        batch = batch_of([length] * max(1, 512 // length), vocabulary, self.device)

        def run() -> None:
            pooled(self.engine, self.task, states_of(self.engine, batch), batch)

        run()  # the first of its kind is never as fast as the next
        return batch.num_tokens / median(seconds(run, self.device, at_least=0.02) for _ in range(5))

    def _larger_batches(self, speed: float, each: float) -> list[tuple[int, Work]] | None:
        """The linear layers with the budget and with four times that, where it takes no longer than the rest."""
        budget = self.chosen.budget
        if not self.products.order or 5 * budget > speed * each:
            return None
        try:
            works = [(tokens, self.products.work(tokens)) for tokens in (budget, 4 * budget)]
            for _, work in works:
                work()
        except torch.OutOfMemoryError:
            return None  # then it is no advice either
        return works

    def _alternatives(self) -> dict[str, tuple[Work, Work]]:
        """The model's linear layers as they are, and in each number type in which a large product is faster."""
        own = self.chosen.quantization or self.chosen.dtype
        if own not in self.gemm.work or self.chosen.quantization is not None:
            return {}
        rate, found = self.gemm.rate(own), {}
        tokens = max(1, min(self.chosen.budget, int(LEAST_FLOPS / max(1, self.arithmetic.linear_flops()))))
        at_once = rows_at_once(self.chosen.fused)
        for name in self.gemm.work:
            if name not in (own, "float16") and self.gemm.rate(name) > rate:  # some states overflow float16
                other = Products(self.arithmetic, hardware.in_type(name, self.linears))
                found[name] = (self.products.work(tokens, at_once), other.work(tokens, at_once))
                for work in found[name]:
                    work()
        return found

    def _machine_round(self) -> None:
        for name in self.gemm.work:
            self.rates[name].append(self.gemm.rate(name))
        for name, work in self.copies.items():
            times = 2 if name == "copy" else 1  # read and written
            self.copied[name].append(times * hardware.COPY_BYTES / seconds(work, self.device))

    def _peaks(self, probes: Sequence[Probe], rounds: int) -> list[float]:
        """The best rate of every round, by a large product or by the model's own layers."""
        large = self.rates.get(self.chosen.quantization or self.chosen.dtype) or [0.0] * rounds
        return [max(large[number], *(probe.rounds[number].rate for probe in probes)) for number in range(rounds)]

    def _single(self) -> float:
        def ask(text: str) -> float:
            request = PoolRequest(task=self.task, inputs=[text], prompt="")
            return seconds(lambda: self.engine.pool_sync(request), torch.device("cpu"))

        return median(ask(text) for text in self.alone.texts(SINGLES))

    def _findings(self, probes: Sequence[Probe], rounds: int, took: float) -> Findings:
        peaks = self._peaks(probes, rounds)
        copied = {name: Figure.of(samples) for name, samples in self.copied.items()}
        on_gpu = self.device.type == "cuda"
        shortest = probes[0].workload.mean_length
        return Findings(
            model=self.description.name,
            task=self.task,
            weights=self.arithmetic.weights(),
            complete=self.arithmetic.complete,
            machine=Machine(
                processor=cpu_name(),
                cores=hardware.usable_cores(),
                threads=torch.get_num_threads(),
                torch=torch.__version__,
                gpu=torch.cuda.get_device_name(self.device) if on_gpu else None,
                gpu_bytes=torch.cuda.get_device_properties(self.device).total_memory if on_gpu else None,
                gemm={kind: Figure.of(samples) for kind, samples in self.rates.items()},
                **copied,
            ),
            chosen=self.chosen,
            settings=tuple(settings(self.engine, self.chosen)),
            readings=tuple(probe.reading(peaks, copied["copy"].value) for probe in probes),
            tokenizer=Figure.of(1 / each.parts["tokenising"] for probe in probes[-1:] for each in probe.rounds),
            per_input=Figure.of(each.parts["engine"] * shortest for each in probes[0].rounds),
            single=Figure.of(self.singles),
            alternatives={name: Figure.of(samples) for name, samples in self.faster.items()},
            larger_batches=Figure.of(self.larger) if self.larger else None,
            rounds=rounds,
            seconds=took,
        )


def _has_time(began: float, started: float, rounds: int, duration: float) -> bool:
    """Whether one more round like those before ends in time; a second one, to see how they differ, may take longer."""
    now = time.perf_counter()
    if rounds == 0:
        return True
    return now - began + (now - started) / rounds < (1.5 * duration if rounds == 1 else duration)
