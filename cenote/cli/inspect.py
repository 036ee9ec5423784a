"""`cenote inspect`: every value that was resolved for a model and where it came from, without reading its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cenote.config import EngineConfig, Sourced
from cenote.loading.describe import Description, describe


def inspect(config: EngineConfig) -> int:
    rows = list(table(describe(config)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, source in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {f'from {source}' if source else ''}".rstrip())
    return 0


def table(model: Description) -> Iterator[tuple[str, str, str]]:
    """Name, value and source, in the order in which a reader asks."""
    plan, backbone = model.plan, model.architecture.backbone
    yield "model", model.name, str(model.checkpoint.folder)
    yield "architecture", model.entry.name, "config.json architectures"
    yield "used as", model.kind.value, model.kind.source
    yield "tasks", ", ".join(plan.tasks), "pooler config" if plan.defaults.task else model.kind.source
    yield "pooling", " + ".join(plan.sequence.value), plan.sequence.source
    yield "token pooling", *_shown(plan.token)
    if model.kind.value == "embed":
        yield "activation", "normalize" if plan.use_activation.value else "none", plan.use_activation.source
        yield "dimensions", str(plan.matryoshka.full_size), _embedding_size_source(model)
        yield "matryoshka", *_matryoshka(model)
    else:
        shown = plan.activation.value if plan.use_activation.value else "none"
        yield "activation", shown, plan.activation.source if plan.use_activation.value else plan.use_activation.source
        yield "labels", str(model.num_labels), "classifier_from_token" if model.token_labels else "config.json"
    for step in model.sentence_transformers.projector:
        yield "projector", step.folder, "modules.json"
    yield "max tokens", *_shown(model.max_length)
    yield "attention", "causal" if backbone.causal else "bidirectional", "config.json"
    yield "layers", f"{backbone.num_layers} x {backbone.hidden_size}", "config.json"
    yield "dtype", str(model.dtype.value).removeprefix("torch."), model.dtype.source
    yield "head dtype", str(model.head_dtype.value).removeprefix("torch."), model.head_dtype.source
    yield "device", *_shown(model.device)
    for name in model.prompts:
        yield "prompt", f"{name}: {model.prompts[name]!r}", "config_sentence_transformers.json"


def _shown(decision: Sourced[Any]) -> tuple[str, str]:
    return str(decision.value), decision.source


def _embedding_size_source(model: Description) -> str:
    return "modules.json" if model.sentence_transformers.projector else "config.json hidden_size"


def _matryoshka(model: Description) -> tuple[str, str]:
    matryoshka = model.plan.matryoshka
    if not matryoshka.supported:
        return "no", "config.json has neither matryoshka_dimensions nor is_matryoshka"
    return ", ".join(map(str, matryoshka.sizes)) or f"1 to {matryoshka.full_size}", "config.json"
