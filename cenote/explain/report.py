"""The findings for people, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from cenote.explain.advice import Advice
from cenote.explain.results import PARTS, Findings, Machine, Reading
from cenote.explain.timing import Figure


def as_json(findings: Findings, advice: Sequence[Advice]) -> str:
    found = {**asdict(findings), "advice": [asdict(each) for each in advice], "bound_by": bound_by(findings)}
    return json.dumps(found, indent=2, allow_nan=False)


def as_text(findings: Findings, advice: Sequence[Advice]) -> str:
    return "\n\n".join("\n".join(part) for part in _parts(findings, advice))


def bound_by(findings: Findings) -> str:
    """The largest part of the work on mixed lengths, which are nearest to real ones."""
    shares = findings.readings[-1].shares
    return max(shares, key=lambda name: shares[name])


def _parts(findings: Findings, advice: Sequence[Advice]) -> Iterator[list[str]]:
    yield [
        f"{findings.model}, task {findings.task}; {findings.rounds} rounds in {findings.seconds:.0f} s. "
        "Figures are medians, with the least and the most in brackets."
    ]
    yield ["Machine", *_columns(list(_machine(findings)))]
    yield ["Settings", *_columns([(each.name, each.value, each.reason) for each in findings.settings])]
    yield [_light_title(findings), *_table(list(_speeds(findings)))]
    yield [*_where(findings)]
    yield ["What would help", *([_advised(each) for each in advice] or ["  nothing that was measured here"])]


def _machine(findings: Findings) -> Iterator[tuple[str, str]]:
    machine = findings.machine
    yield "processor", f"{machine.processor}, {machine.cores} cores, {machine.threads} threads of torch {machine.torch}"
    if machine.gpu is not None:
        yield "GPU", f"{machine.gpu}, {(machine.gpu_bytes or 0) / 1024**3:.0f} GiB"
    for kind, rate in machine.gemm.items():
        yield f"GEMM {kind}", f"{_shown(rate, 1e12, '.3g')} TFLOP/s"
    yield from _moves(machine)
    yield "tokenizer", f"{_shown(findings.tokenizer, 1e6, '.2f')} M tokens/s"
    yield "engine", f"{_shown(findings.per_input, 1e-6, '.0f')} µs for each input, besides tokenising and the model"
    yield "one text", f"{_shown(findings.single, 1e-3, '.2f')} ms from 16 tokens to the answer"


def _moves(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "memory copy", f"{_shown(machine.copy, 1e9, '.1f')} GB/s, read and written"
    for name, figure in (("to the GPU", machine.to_device), ("from the GPU", machine.from_device)):
        if figure is not None:
            yield name, f"{_shown(figure, 1e9, '.1f')} GB/s"


def _light_title(findings: Findings) -> str:
    rest = "" if findings.complete else "; the attention of the Transformers library is not counted"
    return f"Speed of light: tokens/s if there were nothing but the model's matrix products, at the best rate{rest}"


def _speeds(findings: Findings) -> Iterator[list[str]]:
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
        memory = [_count(reading.memory_light)] if reading.memory_light is not None else []
        yield [
            reading.name,
            f"{reading.flops_per_token / 1e6:.3g}",
            _count(reading.light.value),
            *memory,
            _shown(reading.reached, 1.0, ",.0f"),
            f"{100 * reading.of_light.value:.0f} %",
            f"{reading.own_rate.value / 1e12:.3g}",
        ]


def _where(findings: Findings) -> Iterator[str]:
    yield "Where the work goes, each part measured by itself"
    yield from _table(
        [
            ["texts of", *(name.split(",")[0] for name in PARTS.values()), "model/run"],
            *([reading.name, *_percents(reading), f"{reading.model_time.value:.2f}"] for reading in findings.readings),
        ]
    )
    yield f"  norms: and activations, and all the rest of the backbone. {_verdict(findings)}"
    smallest = min(reading.batch_tokens for reading in findings.readings)
    if smallest < findings.chosen.budget // 2:
        yield f"  For want of time or sequences, parts were measured in batches of {smallest:,} tokens and more."


def _verdict(findings: Findings) -> str:
    part = bound_by(findings)
    mixed = findings.readings[-1]
    host = mixed.shares["tokenising"] + mixed.shares["engine"]
    words = f"Most of it is {PARTS[part]}."
    if findings.chosen.fused:
        words += " Layers are fused: norms and activations hide behind what is computed anyway."
    if findings.chosen.device == "cuda" and host > 0.5:
        return f"{words} The host's part takes longer than the GPU's: the GPU waits."
    return words


def _percents(reading: Reading) -> list[str]:
    return [f"{100 * reading.shares[name]:.0f} %" for name in PARTS]


def _advised(each: Advice) -> str:
    gain = "" if each.gain is None else f" (about {100 * each.gain:.0f} % more tokens/s)"
    return f"  - {each.text}{gain}"


def _shown(figure: Figure, unit: float, form: str) -> str:
    value, low, high = (format(number / unit, form) for number in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Words under each other, all to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(word.ljust(widths[at]) for at, word in enumerate(row)).rstrip() for row in rows]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Numbers under each other: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(f"{word:{'<' if at == 0 else '>'}{widths[at]}}" for at, word in enumerate(row)) for row in rows
    ]
