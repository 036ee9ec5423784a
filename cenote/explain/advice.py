"""What would help next: each piece of advice has a cause that was measured, and a gain that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cenote.explain.results import Findings, Reading

REINSTALL = "pip install --force-reinstall --no-deps --no-binary cenote cenote"
# below this, a change is lost in the noise
WORTH_SAYING = 0.05
# a part that takes more than this of the work is worth a word
LARGE_PART = 0.2
# rounds that differ by more than this say little
NOISY = 0.5


@dataclass(frozen=True, slots=True)
class Advice:
    text: str
    gain: float | None = None  # how much faster, as a share: 0.2 is 20 % more tokens/s; an estimate


def advice(findings: Findings) -> list[Advice]:
    """The most useful first; what cannot be put in numbers comes last."""
    found = [
        *_native_code(findings),
        *_tokenizer(findings),
        *_number_type(findings),
        *_batches(findings),
        *_threads(findings),
        *_host(findings),
        *_fallback(findings),
        *_noise(findings),
    ]
    return sorted(found, key=lambda each: each.gain is None or -each.gain)


def faster(share: float, factor: float) -> float:
    """What all of it gains when a part that takes that share becomes faster by a factor."""
    return 1 / (1 - share + share / factor) - 1


def _native_code(findings: Findings) -> Iterator[Advice]:
    chosen = findings.chosen
    if chosen.native == "in use" or not chosen.tiles or chosen.device != "cpu" or chosen.dtype != "bfloat16":
        return
    share = max(reading.shares["attention"] for reading in findings.readings)
    yield Advice(
        f"our native code is {chosen.native}, so torch's kernels are used, and attention takes up to {_percent(share)} "
        f"of the work: reinstall with gcc 11 or newer on the path ({REINSTALL})"
    )


def _tokenizer(findings: Findings) -> Iterator[Advice]:
    chosen = findings.chosen
    if not chosen.word_pieces or chosen.own_tokenizer:
        return
    share = max(reading.shares["tokenising"] for reading in findings.readings)
    if share > WORTH_SAYING:
        yield Advice(
            f"our own tokenizer is not there, and tokenising takes up to {_percent(share)} of the work: "
            f"reinstall with a compiler on the path ({REINSTALL})"
        )


def _number_type(findings: Findings) -> Iterator[Advice]:
    for name, factor in findings.alternatives.items():
        gain = faster(_products(findings), factor.value)
        if gain < WORTH_SAYING or factor.low <= 1:
            continue
        if name in ("int8", "fp8"):
            flag, warning = "--quantization", "; see what it does to the answers first (cenote bench quality)"
        else:
            flag, warning = "--dtype", ""
        yield Advice(
            f"{flag} {name}: the model's linear layers ran {factor.value:.1f}x as fast in it, "
            f"and matrix products are {_percent(_products(findings))} of the work{warning}",
            gain,
        )


def _batches(findings: Findings) -> Iterator[Advice]:
    chosen = findings.chosen
    for reading in findings.readings:
        most = chosen.max_num_seqs * reading.mean_length
        if most < 0.5 * chosen.budget and reading.run_batch_tokens < 0.5 * chosen.budget:
            yield Advice(
                f"--max-num-seqs {int(chosen.budget // reading.mean_length)}: at {reading.name} batches held "
                f"{reading.run_batch_tokens:,.0f} tokens on average, and {chosen.budget:,} fit"
            )
            break  # what the shortest need is enough for all
    if findings.larger_batches is not None:
        gain = faster(_products(findings), findings.larger_batches.value)
        if findings.larger_batches.low > 1 and gain > WORTH_SAYING:
            yield Advice(
                f"--max-num-batched-tokens {4 * chosen.budget}: the linear layers ran "
                f"{findings.larger_batches.value:.2f}x as fast with batches of that size; single answers wait longer",
                gain,
            )


def _threads(findings: Findings) -> Iterator[Advice]:
    chosen = findings.chosen
    if chosen.device == "cpu" and chosen.threads < chosen.cores:
        yield Advice(
            f"torch computes with {chosen.threads} of {chosen.cores} cores: unset OMP_NUM_THREADS, "
            f"or set it to {chosen.cores}"
        )


def _host(findings: Findings) -> Iterator[Advice]:
    worst = max(findings.readings, key=lambda reading: reading.shares["tokenising"])
    share = worst.shares["tokenising"]
    if share > LARGE_PART:
        yield Advice(
            f"tokenising takes {_percent(share)} of the work at {worst.name}: send token ids where texts come again, "
            "and leave it a core of its own",
            None if findings.chosen.device == "cuda" else faster(share, float("inf")),
        )
    worst = max(findings.readings, key=lambda reading: reading.shares["engine"])
    if worst.shares["engine"] > LARGE_PART:
        yield Advice(
            f"the engine's own work, {findings.per_input.value * 1e6:.0f} µs for each input, takes "
            f"{_percent(worst.shares['engine'])} at {worst.name}: share the texts among several processes"
        )


def _fallback(findings: Findings) -> Iterator[Advice]:
    if not findings.chosen.is_native:
        yield Advice(
            "the Transformers library runs this model, with padding: an architecture of `cenote models` would be faster"
        )


def _noise(findings: Findings) -> Iterator[Advice]:
    worst = max(findings.readings, key=lambda reading: reading.reached.spread)
    if worst.reached.spread > NOISY:
        yield Advice(
            f"runs at {worst.name} reached from {worst.reached.low:,.0f} to {worst.reached.high:,.0f} tokens/s: "
            "others use this machine, or its clock wanders; measure again when it is quiet"
        )


def _products(findings: Findings) -> float:
    """The share of matrix products in the workload that is nearest to real ones, the last."""
    mixed: Reading = findings.readings[-1]
    return mixed.shares["products"]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
