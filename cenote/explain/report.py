"""Format results as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from cenote.explain.advice import Advice
from cenote.explain.results import TIME_PARTS, ExplainResults, HardwareInfo
from cenote.explain.timing import MeasuredValue
from cenote.utils.tables import align_columns


def to_json(results: ExplainResults, advice: Sequence[Advice]) -> str:
    found = {**asdict(results), "advice": [asdict(each) for each in advice], "bound_by": find_bottleneck(results)}
    return json.dumps(found, indent=2, allow_nan=False)


def to_text(results: ExplainResults, advice: Sequence[Advice]) -> str:
    return "\n\n".join("\n".join(part) for part in _iter_sections(results, advice))


def find_bottleneck(findings: ExplainResults) -> str:
    """Return the largest part of the time on mixed lengths, the most realistic workload."""
    shares = findings.readings[-1].shares
    return max(shares, key=lambda name: shares[name])


def _iter_sections(findings: ExplainResults, advice: Sequence[Advice]) -> Iterator[list[str]]:
    yield [
        f"{findings.model}, task {findings.task}; {findings.rounds} rounds in {findings.seconds:.0f} s. "
        "Figures are medians, with the least and the most in brackets."
    ]
    yield ["Machine", *indent(align_columns(list(_iter_hardware(findings))))]
    yield ["Settings", *indent(align_columns([(each.name, each.value, each.reason) for each in findings.settings]))]
    yield [_speed_of_light_title(findings), *indent(align_columns(list(_iter_speeds(findings)), ">"))]
    yield [*_iter_time_shares(findings)]
    yield ["Advice", *([_format_advice(each) for each in advice] or ["  none"])]


def _iter_hardware(findings: ExplainResults) -> Iterator[tuple[str, str]]:
    machine = findings.machine
    yield "processor", f"{machine.processor}, {machine.cores} cores, {machine.threads} threads of torch {machine.torch}"
    if machine.gpu is not None:
        yield "GPU", f"{machine.gpu}, {(machine.gpu_bytes or 0) / 1024**3:.0f} GiB"
    for kind, rate in machine.gemm.items():
        yield f"GEMM {kind}", f"{_format_figure(rate, 1e12, '.3g')} TFLOP/s"
    yield from _iter_transfer_rates(machine)
    yield "tokenizer", f"{_format_figure(findings.tokenizer, 1e6, '.2f')} M tokens/s"
    yield (
        "engine",
        f"{_format_figure(findings.per_input, 1e-6, '.0f')} µs per input, without tokenization and the model",
    )
    parts = ", ".join(f"{name} {figure.value * 1e3:.2f}" for name, figure in findings.single_parts.items())
    yield "one text", f"{_format_figure(findings.single, 1e-3, '.2f')} ms for 16 tokens: {parts}"


def _iter_transfer_rates(machine: HardwareInfo) -> Iterator[tuple[str, str]]:
    yield "memory copy", f"{_format_figure(machine.copy, 1e9, '.1f')} GB/s, read and write"
    for name, figure in (("to the GPU", machine.to_device), ("from the GPU", machine.from_device)):
        if figure is not None:
            yield name, f"{_format_figure(figure, 1e9, '.1f')} GB/s"


def _speed_of_light_title(findings: ExplainResults) -> str:
    rest = "" if findings.complete else "; the attention of the Transformers library is not counted"
    return f"Speed of light: tokens/s of the model's matrix products alone, at the best measured rate{rest}"


def _iter_speeds(findings: ExplainResults) -> Iterator[list[str]]:
    on_gpu = any(reading.memory_light is not None for reading in findings.readings)
    yield [
        "texts of",
        "MFLOP/token",
        "speed of light",
        *(["memory allows"] if on_gpu else []),
        "reached",
        "of it",
        "own layers TFLOP/s",
    ]
    for reading in findings.readings:
        memory = [f"{reading.memory_light:,.0f}"] if reading.memory_light is not None else []
        yield [
            reading.name,
            f"{reading.flops_per_token / 1e6:.3g}",
            f"{reading.light.value:,.0f}",
            *memory,
            _format_figure(reading.reached, 1.0, ",.0f"),
            f"{100 * reading.of_light.value:.0f} %",
            f"{reading.own_rate.value / 1e12:.3g}",
        ]


def _iter_time_shares(findings: ExplainResults) -> Iterator[str]:
    yield "Share of time, each part measured alone"
    rows = [["texts of", *(name.split(",")[0] for name in TIME_PARTS.values()), "model/run"]]
    for reading in findings.readings:
        shares = [f"{100 * reading.shares[name]:.0f} %" for name in TIME_PARTS]
        rows.append([reading.name, *shares, f"{reading.model_time.value:.2f}"])
    yield from indent(align_columns(rows, ">"))
    yield f"  norms: also activations and all other parts of the backbone. {_summarize_bottleneck(findings)}"
    smallest = min(reading.batch_tokens for reading in findings.readings)
    if smallest < findings.chosen.budget // 2:
        yield f"  Some parts were measured in smaller batches, from {smallest:,} tokens."


def _summarize_bottleneck(findings: ExplainResults) -> str:
    part = find_bottleneck(findings)
    mixed = findings.readings[-1]
    host = mixed.shares["tokenising"] + mixed.shares["engine"]
    words = f"The largest part is {TIME_PARTS[part]}."
    if findings.chosen.fused:
        words += " Layers are fused: norms and activations hide behind what is computed anyway."
    if findings.chosen.device == "cuda" and host > 0.5:
        return f"{words} The host takes longer than the GPU: the GPU is idle part of the time."
    return words


def _format_advice(each: Advice) -> str:
    gain = "" if each.gain is None else f" (about {100 * each.gain:.0f} % more tokens/s)"
    return f"  - {each.text}{gain}"


def _format_figure(figure: MeasuredValue, unit: float, form: str) -> str:
    value, low, high = (format(number / unit, form) for number in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"


def indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
