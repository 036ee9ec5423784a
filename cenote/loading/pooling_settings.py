"""Tasks and pooling of a model: the last stage of loading."""

from __future__ import annotations

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.loading.family import Family
from cenote.loading.matryoshka import resolve_matryoshka
from cenote.models.published_models import MERGED_IMAGE_EMBEDDER
from cenote.models.registry import CheckpointKind
from cenote.pooling.activation_names import ACTIVATION_BY_LABELS, resolve_classification_activation
from cenote.pooling.plan import NORMALIZE_BY_DEFAULT, PoolingFileSettings, PoolingPlan, resolve_plan
from cenote.protocol.params import Task

# supported tasks by kind, the default first
TASKS_BY_KIND: dict[CheckpointKind, tuple[Task, ...]] = {
    "embed": ("embed", "token_embed"),
    "sequence": ("classify", "token_classify"),
    "token": ("token_classify",),
    "reward": ("token_classify", "token_embed", "embed"),
    "masked": ("token_classify", "embed", "token_embed"),
    "sparse": ("embed", "token_embed", "sparse_embed"),
    "multi_vector": ("token_embed",),
    "hybrid": ("embed", "token_embed", "token_classify", "sparse_embed"),
    "listwise": ("token_embed",),
    "causal": ("token_classify",),
    "entities": ("token_classify",),
    "tensors": ("plugin",),
}


def resolve_tasks(options: EngineConfig, family: Family) -> tuple[Task, ...]:
    """Return the tasks of a model, with the one of the deprecated option `task` first, if the model has it.

    With ALL or STEP pooling, that option selected a row per token.
    """
    tasks = _list_tasks(family)
    default = next((task for task in tasks if task == options.task), tasks[0])
    if options.task is not None and options.pooler_config.tok_pooling_type is not None:
        default = next((task for task in tasks if task == f"token_{default}"), default)
    return tuple(sorted(tasks, key=lambda task: task != default))


def resolve_pooling(options: EngineConfig, family: Family, tasks: tuple[Task, ...], name: str) -> PoolingPlan:
    """Return how hidden states become results; `name` is that of the model in messages."""
    head, step_tag = family.head, None
    if head is not None and head.spec.step_tag_id is not None:
        step_tag = Sourced(head.spec.step_tag_id, f"{family.entry.name}'s classifier")
    return resolve_plan(
        model=name,
        pooler_config=options.pooler_config,
        file_settings=_select_file_settings(family, tasks),
        method=_resolve_default_method(family),
        activation=_resolve_activation(family),
        tasks=tasks,
        matryoshka=resolve_matryoshka(options, family),
        no_activation_tasks=_list_raw_tasks(family, tasks),
        step_tag=step_tag,
        logit_mean=None if head is None else head.logit_mean,
        num_labels=family.num_labels,
        normalize=_resolve_default_normalization(family),
    )


def _list_tasks(family: Family) -> tuple[Task, ...]:
    kind, architecture, head = family.kind.value, family.architecture, family.head
    if family.layout.files.score_head is not None:
        return ("classify",)  # its modules were trained on pooled states
    if kind == "sequence" and architecture.pair_lengths is not None:
        return ("classify",)  # it reads the last state of its decoder
    if kind == "sequence" and head is not None and head.spec.gating is not None:
        return ("classify",)  # it reads two states of a sequence
    if kind == "sequence" and family.entry.uses_transformers:
        return ("classify",)  # the Transformers backend has no logits per token for sequence classifiers
    if kind == "sparse" and architecture.is_static:
        return ("embed", "sparse_embed")
    if kind == "masked" and not architecture.defaults_to_mlm:
        return (*TASKS_BY_KIND["embed"], "token_classify")
    return TASKS_BY_KIND[kind]


def _list_raw_tasks(family: Family, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return the tasks that return raw values unless a request sets use_activation."""
    if family.kind.value == "listwise":
        return tasks
    is_raw = family.head is not None and not family.head.applies_activation
    return tuple(task for task in tasks if is_raw and "classify" in task)


def _select_file_settings(family: Family, tasks: tuple[Task, ...]) -> PoolingFileSettings | None:
    """Return what the files say about the pooling of these tasks."""
    files = family.layout.files
    if family.architecture.task_adapters:
        return None  # the custom Transformer module of such a model pools and normalizes itself
    if files.score_head is not None:
        return PoolingFileSettings(files.pooling, None, files.includes_prompt)
    if "embed" not in tasks and not (family.kind.value == "multi_vector" and files.multi_vector):
        return None  # the files describe an embedder, but the model is used otherwise
    return PoolingFileSettings(files.pooling, files.normalize, files.includes_prompt)


def _resolve_default_method(family: Family) -> Sourced[str]:
    architecture, head = family.architecture, family.architecture.sequence_head
    if family.kind.value == "sequence" and head is not None and head.spec.pooling is not None:
        return Sourced(head.spec.pooling, f"{family.entry.name}'s classifier")
    if MERGED_IMAGE_EMBEDDER in family.layout.checkpoint.name and architecture.vision is not None:
        return Sourced("IMAGE_MEAN", f"the model name, {MERGED_IMAGE_EMBEDDER}*")
    return Sourced(architecture.pooling, f"default of {family.entry.name}")


def _resolve_default_normalization(family: Family) -> Sourced[bool]:
    if family.kind.value == "embed" and not family.architecture.normalize:
        return Sourced(False, f"default of {family.entry.name}")
    return NORMALIZE_BY_DEFAULT


def _resolve_activation(family: Family) -> Sourced[str]:
    kind, head, files = family.kind, family.head, family.layout.files
    if kind.value == "hybrid":
        return Sourced("relu", kind.source)  # lexical weights are not negative
    if kind.value in ("reward", "entities") and head is None:
        return Sourced("identity", kind.source)  # hidden states, not logits
    if head is not None and head.activation is not None:
        return Sourced(head.activation, kind.source)
    values, recipe = {"num_labels": None, **family.layout.config.values}, family.reranker.recipe
    # newer cross-encoders store it in config_sentence_transformers.json;
    # the score of most published rerankers is a probability, whatever that file says
    if files.activation and (recipe is None or recipe.activation is not None):
        values["sentence_transformers"] = {"activation_fn": files.activation}
    found = resolve_classification_activation(values)
    if recipe is not None and recipe.activation is not None and found.source == ACTIVATION_BY_LABELS:
        return Sourced(recipe.activation, f"the score of {recipe.name}")
    return found
