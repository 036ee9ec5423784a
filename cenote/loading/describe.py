"""Resolve all settings of a model before its weights are loaded, each with its source.

The stages, in order: what the files say in whatever layout (`layouts/`), the architecture and how the model is used
(`family.py`), the maximum length (`lengths.py`), device and number formats (`number_formats.py`), and tasks and pooling
(`pooling_settings.py`). Each reads what the stages before it resolved and changes none of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.adapter_base import find_adapter_doubts
from cenote.loading.card_evidence import ModelUse, weigh_card
from cenote.loading.default_model import SHORT_NAME
from cenote.loading.family import Family, resolve_family
from cenote.loading.known_models import find_attention_doubt
from cenote.loading.layouts.layout import Layout, explain_invalid_values
from cenote.loading.layouts.readers import read_layout
from cenote.loading.lengths import resolve_length
from cenote.loading.model_description import ModelDescription
from cenote.loading.model_prompts import read_model_prompts
from cenote.loading.module_list import MODULES_FILE
from cenote.loading.number_formats import resolve_number_formats
from cenote.loading.pooling_settings import resolve_pooling, resolve_tasks
from cenote.loading.unnamed_heads import find_head_doubt
from cenote.models.registry import EXACT_NAMES
from cenote.pooling.plan import NORMALIZE_BY_DEFAULT
from cenote.protocol.names import get_public_name


def describe_model(options: EngineConfig, route: str | None = None, *, needs_weights: bool = True) -> ModelDescription:
    """Resolve all settings; `needs_weights=False` downloads configuration and tokenizer files only.

    `route` is that of a model with a Router, None: its default.
    """
    layout = read_layout(options, route, needs_weights=needs_weights)
    with explain_invalid_values(layout.config):
        family = resolve_family(options, layout)
        max_length = resolve_length(options, family)
        formats = resolve_number_formats(options, family)
        name = options.served_model_name or get_public_name(options.model or SHORT_NAME)
        tasks = resolve_tasks(options, family)
        plan = resolve_pooling(options, family, tasks, name)
        layout, architecture = family.layout, family.architecture
        described = ModelDescription(
            name=name,
            checkpoint=layout.checkpoint,
            config=layout.config,
            entry=family.entry,
            architecture=architecture.with_max_positions(max_length.value),
            kind=family.kind,
            plan=plan,
            model_tasks=tasks,
            num_labels=family.num_labels,
            labels=family.labels,
            token_labels=family.reranker.labels,
            score_template=family.reranker.template,
            sentence_transformers=layout.files,
            prompts=read_model_prompts(options, family),
            late_interaction=family.late_interaction,
            max_length=max_length,
            device=formats.device,
            dtype=formats.dtype,
            head_dtype=formats.head_dtype,
            matmul_dtype=formats.matmul_dtype,
            quantization=formats.quantization,
            find_tokenizer=layout.find_tokenizer or (lambda: layout.checkpoint),
            deterministic=options.deterministic,
            doubts=tuple(_iter_doubts(family)),
        )
        return _weigh_card(options, described, layout)


def _iter_doubts(family: Family) -> Iterator[str]:
    layout, entry, architecture = family.layout, family.entry, family.architecture
    yield from layout.doubts
    yield from layout.files.doubts
    if (attention := find_attention_doubt(layout.config, entry, architecture)) is not None:
        yield attention
    if (head := find_head_doubt(layout, entry, family.kind)) is not None:
        yield head
    yield from architecture.doubts
    yield from find_adapter_doubts(layout.checkpoint)


def _weigh_card(options: EngineConfig, model: ModelDescription, layout: Layout) -> ModelDescription:
    """Return the description with what its model card says; raise LoadError if that shows that it is wrong."""
    kind, files, pooling = model.kind, model.sentence_transformers, model.plan.seq_pooling_types
    is_chosen = kind.source.startswith("convert") or kind.value in ("causal", "tensors")
    is_declared = is_chosen or any(
        (files.pooling, files.splade, files.multi_vector, files.logit_score, files.score_head)
    )
    has_pair_prompt = (
        model.architecture.pairs_with_separator or model.score_template or options.score_template == "none"
    )
    # architectures with a name of their own are implemented after one published model
    is_default = pooling.source.startswith("default of") and model.entry.name not in EXACT_NAMES
    use = ModelUse(
        kind=kind.value,
        architecture=model.entry.name,
        config_file=model.config.source,
        is_declared=is_declared,
        is_converted=model.entry.kind == "causal" and kind.value == "embed" and not is_declared,
        default_pooling=pooling.value[0] if is_default else None,
        normalizes_by_default=model.plan.use_activation == NORMALIZE_BY_DEFAULT,
        has_modules=model.checkpoint.find_file(MODULES_FILE) is not None,
        lacks_pair_prompt="score" in model.plan.supported_tasks and not (has_pair_prompt or is_declared),
    )
    names = [name.rstrip("/").rpartition("/")[2] for name in layout.names]
    evidence = weigh_card(layout.card, names, use)
    if evidence.refusal is not None:
        raise LoadError(evidence.refusal)
    return replace(model, card=evidence, doubts=(*model.doubts, *evidence.doubts))
