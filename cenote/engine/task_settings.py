"""What the tasks of a loaded model need: its score types, and how it finds entities."""

from __future__ import annotations

from cenote.engine.tasks.entity_settings import EntitySettings
from cenote.engine.tasks.text_tasks import TaskSettings
from cenote.loading.loaded_model import LoadedModel
from cenote.scoring.scorer import ScoringModel


def make_task_settings(model: LoadedModel) -> TaskSettings:
    description = model.description
    scoring = ScoringModel(
        description.name,
        description.plan.tasks,
        description.num_labels,
        model.tokenizer.pad_token_id,
        description.score_type,
        description.max_length.value,
        description.pair_prompt,
        description.has_routes,
        description.divides_max_sim,
        description.has_role_formats,
        reads_images=description.architecture.vision is not None,
    )
    return TaskSettings(scoring, _make_entity_settings(model))


def _make_entity_settings(model: LoadedModel) -> EntitySettings | None:
    """Return None for a model that neither classifies every token nor scores spans."""
    description = model.description
    plan, max_length = description.plan, description.max_length.value
    if (span_head := description.architecture.span_head) is not None:
        return EntitySettings(max_length, span_head=span_head)
    is_token_classifier = description.kind.value == "token" and "token_classify" in plan.tasks
    if not is_token_classifier or plan.tok_pooling_type.value != "ALL":
        return None
    # the default label names of Transformers
    labels = description.labels or [f"LABEL_{row}" for row in range(description.num_labels)]
    return EntitySettings(max_length, tuple(labels), model.tokenizer.unk_token_id)
