"""What a loaded model says of itself, in plain values."""

from __future__ import annotations

from cenote.engine.preprocessing.renderer_factory import own_template
from cenote.engine.tasks.entity_recognizer import Tagger
from cenote.loading.load import LoadedModel
from cenote.protocol.requests import About
from cenote.scoring.scorer import Scorable


def about(model: LoadedModel, scorable: Scorable, *, plugin: str | None, chat_template: str | None) -> About:
    description, tokenizer = model.description, model.tokenizer
    embeds = "embed" in description.plan.tasks
    vision = description.architecture.vision
    template = chat_template or own_template(model)[0]
    shown = {"chat_template": template} if template is not None else {}
    prompts, adapters = description.prompts, model.adapters
    return About(
        model=description.name,
        root=description.checkpoint.name,
        architecture=description.entry.name,
        tasks=description.plan.tasks,
        default_task=description.default_task,
        score_types=scorable.score_types,
        max_model_len=description.max_length.value,
        dtype=str(description.dtype.value).removeprefix("torch."),
        device=str(description.device.value),
        embedding_size=description.plan.matryoshka.full_size if embeds else None,
        labels=description.labels,
        prompts=dict(prompts.named),
        instructions=dict(prompts.instructions),
        default_prompt=None if prompts.default is None else prompts.default.value,
        marks_roles=description.late_interaction is not None,
        tokenizer_info={**tokenizer.info, **shown},
        # models of two towers read either a text or an image, and a conversation would only get in its way
        has_chat_template=template is not None and (vision is None or vision.images.alone is None),
        adapters=() if adapters is None else adapters.names,
        added_adapters={} if adapters is None else dict(adapters.added),
        plugin=plugin,
        finds_entities=Tagger.fits(model),
        reads_images=vision is not None,
    )
