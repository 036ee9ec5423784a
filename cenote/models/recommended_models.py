"""Published models to begin with, by task: size, languages, context, licence and the reported quality."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from cenote.errors import BadRequest

Use = Literal["embed", "rerank", "sparse", "late-interaction", "classify", "entities", "images"]
USES: tuple[Use, ...] = ("embed", "rerank", "sparse", "late-interaction", "classify", "entities", "images")
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}
# speed classes by parameters: what a CPU serves well, what it serves slowly, and what needs a GPU
CPU_PARAMETERS, SLOW_CPU_PARAMETERS = 150e6, 700e6


@dataclass(frozen=True, slots=True)
class RecommendedModel:
    name: str  # on the hub
    task: Use
    parameters: float
    languages: str  # en, or multilingual
    max_tokens: int
    license: str
    quality: str  # benchmark and figure; empty: none that compares
    source: str  # where the figure is published: the card or paper of the model, or the card of another model
    dimensions: int | None = None

    @property
    def speed(self) -> str:
        if self.parameters <= CPU_PARAMETERS:
            return "CPU"
        return "CPU, slow" if self.parameters <= SLOW_CPU_PARAMETERS else "GPU"


@cache
def read_recommended_models() -> tuple[RecommendedModel, ...]:
    text = (files("cenote.models") / "recommended_models.json").read_text(encoding="utf-8")
    return tuple(RecommendedModel(**row) for row in json.loads(text))


def parse_parameters(text: str) -> float:
    """Parse a number of parameters such as 500M or 1.5B."""
    number, factor = (text[:-1], UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else (text, 1.0)
    try:
        return float(number) * factor
    except ValueError:
        raise BadRequest(f"invalid number of parameters {text!r}; expected for example 500M or 1.5B") from None


def select_models(task: str | None, max_size: float | None, language: str | None) -> list[RecommendedModel]:
    """Return the models of a task, in the order of the table, that are small enough and know the language."""
    return [
        model
        for model in read_recommended_models()
        if task in (None, model.task)
        and (max_size is None or model.parameters <= max_size)
        and (language is None or model.languages in (language, "multilingual"))
    ]


def format_parameters(parameters: float) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"


def format_recommended(models: Sequence[RecommendedModel]) -> str:
    rows = [(model.name, model.task, *_cells(model)) for model in models]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(rows[0]))] if rows else []
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in lines)


def format_recommended_markdown(models: Sequence[RecommendedModel]) -> str:
    """Return a table for each task."""
    columns = ("model", "parameters", "languages", "max tokens", "dimensions", "licence", "runs on", "reported")
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    parts = []
    for task in dict.fromkeys(model.task for model in models):
        rows = [f"| {' | '.join((model.name, *_cells(model)))} |\n" for model in models if model.task == task]
        parts.append(f"\n### {task}\n\n{head}{''.join(rows)}")
    return "".join(parts)


def recommended_to_json(models: Sequence[RecommendedModel]) -> str:
    return json.dumps([{**asdict(model), "speed": model.speed} for model in models], indent=2) + "\n"


def _cells(model: RecommendedModel) -> tuple[str, ...]:
    quality = f"{model.quality} ({model.source})" if model.quality else "-"
    dimensions = "" if model.dimensions is None else str(model.dimensions)
    size = format_parameters(model.parameters)
    return size, model.languages, str(model.max_tokens), dimensions, model.license, model.speed, quality
