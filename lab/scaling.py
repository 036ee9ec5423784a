"""`python -m lab.scaling`: time and memory for increasing numbers of tokens, in texts of one length.

`--tokens 10k,100k,1M --length 128` reports whether seconds per token and peak memory stay constant.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from cenote.bench.report import machine_info
from cenote.bench.workloads import single_token_words
from cenote.layers.torch_dtypes import to_torch_device
from cenote.llm import LLM
from cenote.utils.progress import print_note
from lab.memory import PeakMemory

CPU_STEPS = (20_000, 100_000, 500_000)
GPU_STEPS = (10_000, 100_000, 1_000_000, 10_000_000)
CPU_SLICE_TOKENS, GPU_SLICE_TOKENS = 8_192, 65_536  # tokens per LLM.embed call
NUM_CALLERS = 2  # while one thread receives its results, the engine computes the slice of the other
SHORT_STEP_S = 2.0  # shorter steps are repeated; the median is reported
MAX_REPEATS = 20
MAX_LINEAR_GROWTH = 1.25  # limit for the growth of seconds per token
MAX_FLAT_GROWTH_MIB = 64.0  # limit for memory growth, from the first step that fills the pipeline to the last


@dataclass(frozen=True, slots=True)
class ScalingStep:
    tokens: int
    seconds: float
    tokens_per_s: float
    peak_mib: float  # above the memory of the process at the start of the step
    device_peak_mib: float | None


class RandomTexts:
    """Generates distinct texts of one length lazily, in slices."""

    def __init__(self, words: Sequence[str], length: int, seed: int = 0) -> None:
        # windows need more words than their length
        self.words, self.length = list(words) * (2 * length // len(words) + 1), length
        self.random = np.random.default_rng(seed)

    def iter_slices(self, num_texts: int, size: int) -> Iterator[list[str]]:
        made = 0
        while made < num_texts:
            # windows over a new permutation of the words: cheap, and all texts differ
            order = [self.words[at] for at in self.random.permutation(len(self.words))]
            windows = min(num_texts - made, len(order) - self.length)
            for start in range(0, windows, size):
                yield [" ".join(order[at : at + self.length]) for at in range(start, min(start + size, windows))]
            made += windows


def slice_tokens(llm: LLM) -> int:
    return CPU_SLICE_TOKENS if llm.engine.model.description.device.value.type == "cpu" else GPU_SLICE_TOKENS


def run_step(llm: LLM, texts: RandomTexts, num_tokens: int) -> tuple[int, float]:
    """Embed about `num_tokens` tokens; return the exact tokens and the seconds."""
    per_text = texts.length + llm.engine.tokenizer.raw.num_special_tokens_to_add(is_pair=False)
    num_texts = max(1, num_tokens // per_text)
    slices = texts.iter_slices(num_texts, max(1, slice_tokens(llm) // per_text))
    lock = threading.Lock()

    def work() -> int:
        tokens = 0
        while True:
            with lock:
                batch = next(slices, None)
            if batch is None:
                return tokens
            outputs = llm.embed(batch, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})
            tokens += sum(len(output.prompt_token_ids) for output in outputs)

    began = time.perf_counter()
    with ThreadPoolExecutor(NUM_CALLERS) as callers:
        total = sum(future.result() for future in [callers.submit(work) for _ in range(NUM_CALLERS)])
    return total, time.perf_counter() - began


def measure_step(llm: LLM, texts: RandomTexts, num_tokens: int) -> ScalingStep:
    seconds: list[float] = []
    peak = PeakMemory(to_torch_device(llm.engine.model.description.device.value))
    while not seconds or (sum(seconds) < SHORT_STEP_S and len(seconds) < MAX_REPEATS):
        tokens, took = run_step(llm, texts, num_tokens)
        seconds.append(took)
    host, device = peak.measure_mib()
    return ScalingStep(tokens, median(seconds), tokens / median(seconds), host, device)


def summarize_steps(steps: Sequence[ScalingStep], in_flight_tokens: int) -> list[str]:
    """Report whether time is linear and memory constant; `in_flight_tokens` are held by the benchmark itself."""
    first, last = steps[0], steps[-1]
    growth = first.tokens_per_s / last.tokens_per_s
    lines = [
        f"{last.tokens / first.tokens:,.0f} times the tokens took {growth:.2f} times the seconds per token: "
        f"{'linear' if growth <= MAX_LINEAR_GROWTH else 'more than linear'}"
    ]
    # smaller steps do not fill the pipeline
    full = [step for step in steps if step.tokens >= in_flight_tokens]
    if len(full) < 2:
        return [*lines, f"of memory nothing can be said: that takes two steps of at least {in_flight_tokens:,} tokens"]
    more = full[-1].peak_mib - full[0].peak_mib
    if full[-1].device_peak_mib is not None and full[0].device_peak_mib is not None:
        more = max(more, full[-1].device_peak_mib - full[0].device_peak_mib)
    flat = "flat" if more <= MAX_FLAT_GROWTH_MIB else "not flat"
    span = f"from {full[0].tokens:,} to {full[-1].tokens:,} tokens"
    return [*lines, f"{span} the peak of memory grew by {max(0.0, more):,.0f} MiB: {flat}"]


def format_table(steps: Sequence[ScalingStep]) -> str:
    lines = [f"{'tokens':>12}  {'seconds':>9}  {'tokens/s':>10}  {'peak MiB':>9}  {'device MiB':>10}"]
    for step in steps:
        device = "-" if step.device_peak_mib is None else f"{step.device_peak_mib:,.0f}"
        cells = f"{step.tokens:>12,}  {step.seconds:>9.2f}  {step.tokens_per_s:>10,.0f}  {step.peak_mib:>9,.1f}"
        lines.append(f"{cells}  {device:>10}")
    return "\n".join(lines)


def main() -> None:
    args = parse_arguments()
    with LLM(args.model, dtype=args.dtype) as llm:
        is_cpu = llm.engine.model.description.device.value.type == "cpu"
        length = min(args.length, llm.engine.model.description.max_length.value)
        tokenizer = llm.get_tokenizer()
        special = tokenizer.num_special_tokens_to_add(is_pair=False)
        texts = RandomTexts(single_token_words(tokenizer.backend_tokenizer), max(1, length - special), args.seed)
        in_flight_tokens = NUM_CALLERS * slice_tokens(llm)
        run_step(llm, texts, in_flight_tokens)  # warmup
        steps = []
        for tokens in args.tokens or (CPU_STEPS if is_cpu else GPU_STEPS):
            steps.append(measure_step(llm, texts, tokens))
            print_note(f"{steps[-1].tokens:,} tokens in {steps[-1].seconds:.2f} s")
        device = torch.cuda.get_device_name() if not is_cpu else machine_info()["processor"]
    print(f"{device}; texts of {length} tokens; peaks are above the start of each step")
    print(format_table(steps))
    verdict = summarize_steps(steps, in_flight_tokens)
    print("\n".join(verdict))
    if args.json:
        report = {"machine": machine_info(), "length": length, "steps": [asdict(step) for step in steps]}
        Path(args.json).write_text(json.dumps(report | {"verdict": verdict}, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.scaling", description=__doc__)
    parser.add_argument("--model", help="embedding model (default: the default model)")
    parser.add_argument("--dtype", default="auto", help="dtype of the weights (default: auto)")
    parser.add_argument(
        "--tokens", type=parse_steps, metavar="N,N,...", help="token counts (default: depends on the device)"
    )
    parser.add_argument("--length", type=int, default=128, help="length of every text in tokens (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a JSON file")
    return parser.parse_args()


def parse_steps(text: str) -> list[int]:
    try:
        counts = [parse_number(word) for word in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"invalid token counts {text!r}; expected for example 10k,100k,1M")
    return sorted(counts)


def parse_number(word: str) -> int:
    word = word.strip().lower()
    factor = {"k": 1_000, "m": 1_000_000}.get(word[-1:], 1)
    return int(float(word.rstrip("km")) * factor)


if __name__ == "__main__":
    main()
