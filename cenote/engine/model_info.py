"""Build the ModelInfo of a loaded model."""

from __future__ import annotations

from cenote.engine.preprocessing.renderer_factory import get_default_chat_template
from cenote.engine.tasks.text_tasks import TaskSettings
from cenote.inputs.tokenizer import SpecialTokensTemplate
from cenote.loading.load import LoadedModel
from cenote.loading.model_description import ModelDescription
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.names import get_public_name


def build_model_info(
    model: LoadedModel,
    tasks: TaskSettings,
    *,
    plugin: str | None,
    chat_template: str | None,
    special_tokens: SpecialTokensTemplate,
    has_result_cache: bool = False,
) -> ModelInfo:
    description, tokenizer = model.description, model.tokenizer
    supports_embed = "embed" in description.plan.tasks
    vision = description.architecture.vision
    template = chat_template or get_default_chat_template(model)[0]
    template_info = {"chat_template": template} if template is not None else {}
    prompts, adapters, late = description.prompts, model.adapters, description.late_interaction
    return ModelInfo(
        name=description.name,
        root=get_public_name(description.checkpoint.name),
        source=description.checkpoint.name,
        architecture=description.entry.name,
        tasks=description.plan.tasks,
        excluded_tasks=tuple(task for task in description.model_tasks if task not in description.plan.tasks),
        default_task=description.default_task,
        score_types=tasks.scoring.score_types,
        max_model_len=description.max_length.value,
        dtype=description.dtype.value,
        device=str(description.device.value),
        products=None if model.products is None else str(model.products),
        deterministic=description.deterministic,
        embedding_size=description.plan.matryoshka.output_size if supports_embed else None,
        labels=description.labels,
        prompts=dict(prompts.by_name),
        instructions=dict(prompts.instructions),
        default_prompt=None if prompts.default is None else prompts.default.value,
        has_role_formats=description.has_role_formats,
        has_routes=description.has_routes,
        late_interaction=None if late is None else f"{late.summary.value} (from {late.summary.source})",
        special_tokens=(tuple(special_tokens.prefix.tolist()), tuple(special_tokens.suffix.tolist())),
        tokenizer_info={**tokenizer.tokenizer_config, **template_info},
        # two-tower models encode either a text or an image, so a conversation with both makes no sense
        has_chat_template=template is not None and (vision is None or vision.image_spec.single_modality_name is None),
        adapters=() if adapters is None else adapters.names,
        external_adapters={} if adapters is None else dict(adapters.added_paths),
        io_processor_plugin=plugin,
        supports_entities=tasks.entities is not None,
        supports_images=vision is not None,
        pooling=get_pooling_name(description),
        fingerprint="" if model.fingerprint is None else str(model.fingerprint),
        has_result_cache=has_result_cache,
    )


def get_pooling_name(description: ModelDescription) -> str | None:
    """Return how the results of the default task are pooled; methods whose results are concatenated are joined."""
    plan = description.plan
    if description.kind.value == "tensors":  # the plugin pools
        return None
    if description.kind.value == "sparse":
        return "SPLADE"
    if description.default_task.startswith("token_"):
        return plan.tok_pooling_type.value
    return " + ".join(plan.seq_pooling_types.value)
