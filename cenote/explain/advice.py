"""Derive advice from measurements, each with its measured cause and estimated gain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cenote.explain.results import ExplainResults, WorkloadResult
from cenote.utils.install_commands import reinstall_command

# gains below this are within noise
MIN_GAIN = 0.05
# parts above this share of the time are reported
LARGE_SHARE = 0.2
# above this spread between rounds, results are unreliable
MAX_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class Advice:
    text: str
    gain: float | None = None  # estimated speedup: 0.2 is 20 % more tokens/s


def make_advice(results: ExplainResults) -> list[Advice]:
    """Return advice sorted by gain; advice without an estimate comes last."""
    found = [
        *_advise_native_code(results),
        *_advise_native_tokenizer(results),
        *_advise_dtype(results),
        *_advise_batch_size(results),
        *_advise_threads(results),
        *_advise_host(results),
        *_advise_architecture(results),
        *_advise_noise(results),
    ]
    return sorted(found, key=lambda each: each.gain is None or -each.gain)


def overall_gain(share: float, factor: float) -> float:
    """Return the overall speedup if a part with this share becomes faster by a factor (Amdahl's law)."""
    return 1 / (1 - share + share / factor) - 1


def _advise_native_code(findings: ExplainResults) -> Iterator[Advice]:
    chosen = findings.chosen
    if chosen.native == "in use" or not chosen.tiles or chosen.device != "cpu" or chosen.dtype != "bfloat16":
        return
    share = max(reading.shares["attention"] for reading in findings.readings)
    yield Advice(
        f"the native code is {chosen.native}, so torch kernels are used; attention takes up to "
        f"{_format_percent(share)} "
        f"of the time: reinstall with gcc 11 or newer on the path ({reinstall_command()})"
    )


def _advise_native_tokenizer(findings: ExplainResults) -> Iterator[Advice]:
    chosen = findings.chosen
    if not chosen.word_pieces or chosen.own_tokenizer:
        return
    share = max(reading.shares["tokenising"] for reading in findings.readings)
    if share > MIN_GAIN:
        yield Advice(
            f"the native tokenizer is not built; tokenization takes up to {_format_percent(share)} of the time: "
            f"reinstall with a compiler on the path ({reinstall_command()})"
        )


def _advise_dtype(findings: ExplainResults) -> Iterator[Advice]:
    for name, factor in findings.alternatives.items():
        gain = overall_gain(_matmul_share(findings), factor.value)
        if gain < MIN_GAIN or factor.low <= 1:
            continue
        if name in ("int8", "fp8"):
            flag, warning = "--quantization", "; check the effect on quality first (cenote bench quality)"
        else:
            flag, warning = "--dtype", ""
        yield Advice(
            f"{flag} {name}: the model's linear layers ran {factor.value:.1f}x as fast, "
            f"and matrix products are {_format_percent(_matmul_share(findings))} of the time{warning}",
            gain,
        )


def _advise_batch_size(findings: ExplainResults) -> Iterator[Advice]:
    chosen = findings.chosen
    for reading in findings.readings:
        most = chosen.max_num_seqs * reading.mean_length
        if most < 0.5 * chosen.budget and reading.run_batch_tokens < 0.5 * chosen.budget:
            yield Advice(
                f"--max-num-seqs {int(chosen.budget // reading.mean_length)}: at {reading.name}, batches had "
                f"{reading.run_batch_tokens:,.0f} tokens on average, the budget is {chosen.budget:,}"
            )
            break  # the value for the shortest texts is enough for all
    if findings.larger_batches is not None:
        gain = overall_gain(_matmul_share(findings), findings.larger_batches.value)
        if findings.larger_batches.low > 1 and gain > MIN_GAIN:
            yield Advice(
                f"--max-num-batched-tokens {4 * chosen.budget}: the linear layers ran "
                f"{findings.larger_batches.value:.2f}x as fast with batches of that size; latency increases",
                gain,
            )


def _advise_threads(findings: ExplainResults) -> Iterator[Advice]:
    chosen = findings.chosen
    if chosen.device == "cpu" and chosen.threads < chosen.cores:
        yield Advice(
            f"torch uses {chosen.threads} of {chosen.cores} cores: unset OMP_NUM_THREADS, or set it to {chosen.cores}"
        )


def _advise_host(findings: ExplainResults) -> Iterator[Advice]:
    worst = max(findings.readings, key=lambda reading: reading.shares["tokenising"])
    share = worst.shares["tokenising"]
    if share > LARGE_SHARE:
        yield Advice(
            f"tokenization takes {_format_percent(share)} of the time at {worst.name}: send token ids for "
            "repeated texts, and leave a core for the tokenizer",
            None if findings.chosen.device == "cuda" else overall_gain(share, float("inf")),
        )
    worst = max(findings.readings, key=lambda reading: reading.shares["engine"])
    if worst.shares["engine"] > LARGE_SHARE:
        yield Advice(
            f"the engine's overhead, {findings.per_input.value * 1e6:.0f} µs per input, takes "
            f"{_format_percent(worst.shares['engine'])} at {worst.name}: distribute the texts over several processes"
        )


def _advise_architecture(findings: ExplainResults) -> Iterator[Advice]:
    if not findings.chosen.is_native:
        yield Advice(
            "this model runs on the Transformers library, with padding; architectures of `cenote models` are faster"
        )


def _advise_noise(findings: ExplainResults) -> Iterator[Advice]:
    worst = max(findings.readings, key=lambda reading: reading.reached.spread)
    if worst.reached.spread > MAX_SPREAD:
        yield Advice(
            f"runs at {worst.name} reached from {worst.reached.low:,.0f} to {worst.reached.high:,.0f} tokens/s: "
            "others use this machine, or its clock wanders; measure again when it is quiet"
        )


def _matmul_share(findings: ExplainResults) -> float:
    """Return the share of matrix products in the last workload, the most realistic one."""
    mixed: WorkloadResult = findings.readings[-1]
    return mixed.shares["products"]


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"
