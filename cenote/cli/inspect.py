"""`cenote inspect`: every value that was resolved for a model and where it came from, without reading its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cenote.config.engine import EngineConfig, Sourced
from cenote.loading.colbert import ExpansionSettings, SideSettings
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
    if model.kind.value == "tensors":  # what pools and attends is the plugin's
        yield "dtype", str(model.dtype.value).removeprefix("torch."), model.dtype.source
        yield "device", *_shown(model.device)
        return
    yield "pooling", *(_splade(model) if model.kind.value == "sparse" else _sequence(plan.sequence))
    yield "token pooling", *_shown(plan.token)
    if model.kind.value in ("embed", "multi_vector"):
        yield "activation", "normalize" if plan.use_activation.value else "none", plan.use_activation.source
        if model.architecture.projection is None or model.sentence_transformers.projector:  # else only the weights know
            yield "dimensions", str(plan.matryoshka.full_size), _embedding_size_source(model)
        yield "matryoshka", *_matryoshka(model)
    elif model.kind.value == "sparse":
        yield "dimensions", str(plan.matryoshka.full_size), "config.json vocab_size"
    else:
        shown = plan.activation.value if plan.use_activation.value else "none"
        yield "activation", shown, plan.activation.source if plan.use_activation.value else plan.use_activation.source
        yield "labels", str(model.num_labels), model.token_labels.source if model.token_labels else "config.json"
    if model.score_template is not None and model.kind.value == "sequence":
        yield "score template", model.score_template.value.name, model.score_template.source
    for step in model.sentence_transformers.projector:
        yield "projector", step.folder, "modules.json"
    if (late := model.late_interaction) is not None:
        yield "query", _side(late.query, late.expansion), late.source
        yield "document", _side(late.document), late.source
    yield "max tokens", *_shown(model.max_length)
    yield "attention", "causal" if backbone.causal else "bidirectional", "config.json"
    yield "layers", f"{backbone.num_layers} x {backbone.hidden_size}", "config.json"
    yield "dtype", str(model.dtype.value).removeprefix("torch."), model.dtype.source
    yield "head dtype", str(model.head_dtype.value).removeprefix("torch."), model.head_dtype.source
    if model.quantization.source != "default":
        yield "quantization", model.quantization.value or "none", model.quantization.source
    yield "device", *_shown(model.device)
    for source, texts in (
        ("config_sentence_transformers.json", model.prompts.named),
        ("config.json task_instructions", model.prompts.instructions),
    ):
        for name, text in texts.items():
            yield "prompt", f"{name}: {text!r}", source
    if (default := model.prompts.default) is not None:
        yield "default prompt", repr(default.value), default.source


def _sequence(methods: Sourced[tuple[str, ...]]) -> tuple[str, str]:
    return " + ".join(methods.value), methods.source


def _splade(model: Description) -> tuple[str, str]:
    files = model.sentence_transformers.splade
    if files is None:
        return "max of log(1 + logit)", f"default of {model.entry.name}"
    return f"{files.strategy} of {'log(1 + log(1 + logit))' if files.num_logs > 1 else 'log(1 + logit)'}", files.source


def _side(side: SideSettings, expansion: ExpansionSettings | None = None) -> str:
    parts = [f"at most {side.length} tokens"] if side.length else []
    parts += [f"marker {side.marker!r}"] if side.marker else []
    if expansion is not None:
        parts.append(f"expanded to {expansion.length}" + ("" if expansion.attended else ", unseen by the text"))
    parts += [f"no vector for {len(side.skiplist)} words"] if side.skiplist else []
    return "; ".join(parts) or "as any text"


def _shown(decision: Sourced[Any]) -> tuple[str, str]:
    return str(decision.value), decision.source


def _embedding_size_source(model: Description) -> str:
    return "modules.json" if model.sentence_transformers.projector else "config.json hidden_size"


def _matryoshka(model: Description) -> tuple[str, str]:
    matryoshka = model.plan.matryoshka
    if not matryoshka.supported:
        return "no", "config.json has neither matryoshka_dimensions nor is_matryoshka"
    return ", ".join(map(str, matryoshka.sizes)) or f"1 to {matryoshka.full_size}", "config.json"
