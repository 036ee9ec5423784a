"""`cenote inspect`: print every resolved setting of a model and its source, without reading the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.loading.colbert import ExpansionSettings, RoleSettings
from cenote.loading.describe import ModelDescription, describe_model


def inspect_model(config: EngineConfig) -> int:
    rows = list(iter_settings(describe_model(config)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, source in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {f'from {source}' if source else ''}".rstrip())
    return 0


def iter_settings(model: ModelDescription) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and source of every setting, the most important first."""
    plan, backbone = model.plan, model.architecture.backbone
    yield "model", model.name, str(model.checkpoint.folder)
    yield "architecture", model.entry.name, "config.json architectures"
    yield "used as", model.kind.value, model.kind.source
    yield "tasks", ", ".join(plan.supported_tasks), "pooler config" if plan.defaults.task else model.kind.source
    if model.kind.value == "tensors":  # the plugin does the rest
        yield "dtype", str(model.dtype.value).removeprefix("torch."), model.dtype.source
        yield "device", *_format_sourced(model.device)
        return
    yield (
        "pooling",
        *(_format_splade(model) if model.kind.value == "sparse" else _format_methods(plan.seq_pooling_types)),
    )
    yield "token pooling", *_format_sourced(plan.tok_pooling_type)
    if model.kind.value in ("embed", "multi_vector"):
        yield "activation", "normalize" if plan.use_activation.value else "none", plan.use_activation.source
        if (
            model.architecture.projection is None or model.sentence_transformers.projector
        ):  # else unknown without weights
            yield "dimensions", str(plan.matryoshka.full_size), _embedding_size_source(model)
        yield "matryoshka", *_format_matryoshka(model)
    elif model.kind.value == "sparse":
        yield "dimensions", str(plan.matryoshka.full_size), "config.json vocab_size"
    else:
        activation = plan.activation.value if plan.use_activation.value else "none"
        yield (
            "activation",
            activation,
            plan.activation.source if plan.use_activation.value else plan.use_activation.source,
        )
        if model.kind.value == "reward" and model.head is None:
            yield "reward", "hidden states of all tokens", "no reward head in the checkpoint"
        else:
            yield "labels", str(model.num_labels), model.token_labels.source if model.token_labels else "config.json"
    if model.score_template is not None and model.kind.value == "sequence":
        yield "score template", model.score_template.value.name, model.score_template.source
    for step in model.sentence_transformers.projector:
        yield "projector", step.folder, "modules.json"
    if model.late_interaction is not None:
        yield "late interaction", *_format_sourced(model.late_interaction.summary)
        if (late := model.late_interaction.settings) is not None:
            yield "query", _format_role(late.query, late.expansion), late.source
            yield "document", _format_role(late.document), late.source
    yield "max tokens", *_format_sourced(model.max_length)
    yield "attention", "causal" if backbone.causal else "bidirectional", "config.json"
    yield "layers", f"{backbone.num_layers} x {backbone.hidden_size}", "config.json"
    yield "dtype", str(model.dtype.value).removeprefix("torch."), model.dtype.source
    yield "head dtype", str(model.head_dtype.value).removeprefix("torch."), model.head_dtype.source
    if model.quantization.source != "default":
        yield "quantization", model.quantization.value or "none", model.quantization.source
    yield "device", *_format_sourced(model.device)
    for source, texts in (
        ("config_sentence_transformers.json", model.prompts.by_name),
        ("config.json task_instructions", model.prompts.instructions),
    ):
        for name, text in texts.items():
            yield "prompt", f"{name}: {text!r}", source
    if (default := model.prompts.default) is not None:
        yield "default prompt", repr(default.value), default.source


def _format_methods(methods: Sourced[tuple[str, ...]]) -> tuple[str, str]:
    return " + ".join(methods.value), methods.source


def _format_splade(model: ModelDescription) -> tuple[str, str]:
    files = model.sentence_transformers.splade
    if files is None:
        return "max of log(1 + logit)", f"default of {model.entry.name}"
    return f"{files.strategy} of {'log(1 + log(1 + logit))' if files.num_logs > 1 else 'log(1 + logit)'}", files.source


def _format_role(role: RoleSettings, expansion: ExpansionSettings | None = None) -> str:
    parts = [f"at most {role.max_length} tokens"] if role.max_length else []
    parts += [f"marker {role.marker!r}"] if role.marker else []
    if expansion is not None:
        parts.append(f"expanded to {expansion.length}" + ("" if expansion.is_attended else ", not attended"))
    parts += [f"no vector for {len(role.skiplist)} words"] if role.skiplist else []
    return "; ".join(parts) or "no special format"


def _format_sourced(decision: Sourced[Any]) -> tuple[str, str]:
    return str(decision.value), decision.source


def _embedding_size_source(model: ModelDescription) -> str:
    return "modules.json" if model.sentence_transformers.projector else "config.json hidden_size"


def _format_matryoshka(model: ModelDescription) -> tuple[str, str]:
    matryoshka = model.plan.matryoshka
    if not matryoshka.is_supported:
        return "no", "config.json has neither matryoshka_dimensions nor is_matryoshka"
    return ", ".join(map(str, matryoshka.sizes)) or f"1 to {matryoshka.full_size}", "config.json"
