"""Detect rerankers based on language models, and their label tokens and score templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files as files_of

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.layouts.layout import Layout
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.loading.template_files import read_template_text
from cenote.loading.token_labels import TokenLabels, read_token_labels
from cenote.loading.tokenizer_files import read_chat_template
from cenote.models.architecture import Architecture
from cenote.models.refused_models import check_name_not_refused
from cenote.models.registry import ArchitectureEntry
from cenote.models.reranker_recipes import NON_VERBATIM_TEMPLATES, RECIPES, TEMPLATE_NAMES, RerankerRecipe
from cenote.protocol.input_types import ScoreTemplate

SCORE_TEMPLATE_OPTION = "score_template"
# pipeline tags of rerankers; fine-tuned models with another tag are not rerankers
RANKING_TAGS = ("text-ranking", "text-classification")


@dataclass(frozen=True, slots=True)
class RerankerSettings:
    """Label tokens (if the head must be made of them) and score template of a reranker."""

    labels: TokenLabels | None = None
    template: Sourced[ScoreTemplate] | None = None
    recipe: RerankerRecipe | None = None  # of a published reranker


def detect_reranker(
    options: EngineConfig, layout: Layout, entry: ArchitectureEntry, family: Architecture, *, has_one_label: bool
) -> RerankerSettings:
    """Return the reranker settings of options and files; empty if the model is not a reranker."""
    config, files = layout.config, layout.files
    given = read_token_labels(config)
    users = _template_from_options(options)
    embeds = options.convert == "embed" or any((files.pooling, files.splade, files.multi_vector))
    scores = entry.kind == "causal" or given is not None or (entry.kind == "sequence" and has_one_label)
    if embeds or not scores or entry.uses_transformers:
        return RerankerSettings(given, users)
    found = _find_recipe(options, layout)
    recipe, labels = (None if found is None else found.value), given
    if labels is None and entry.kind == "causal":
        labels = _labels_from_logit_score(files)
        if labels is None and found is not None:
            labels = TokenLabels(found.value.tokens, found.value.method, found.source, found.value.scale)
        if labels is None:
            check_name_not_refused(layout.checkpoint.candidate_names, config)
            return RerankerSettings(None, users)
    if users is not None or options.score_template == "none":
        return RerankerSettings(labels, users, recipe)
    template = _template_from_files(layout, recipe)
    if template is None and found is not None:
        instructions = {
            "system_instruction": config.get("system_instruction"),
            "default_instruction": files.prompts.get(files.default_prompt_name or ""),
        }
        variables = {name: text for name, text in instructions.items() if text is not None}
        template = Sourced(replace(load_builtin_template(found.value.name), variables=variables), found.source)
    if template is None and family.score_template is not None:
        template = Sourced(load_builtin_template(family.score_template), f"architecture {entry.name}")
    return RerankerSettings(labels, template, recipe)


def refuse_unknown_reranker(options: EngineConfig, layout: Layout, reranker: RerankerSettings) -> None:
    """Raise LoadError for an encoder-decoder that is a reranker by its name, if its prompt is not known.

    Its embeddings would not be wrong, but scores would be cosines, which nobody expects of a reranker.
    """
    if reranker.labels is not None or options.convert == "embed" or "rerank" not in " ".join(layout.names).lower():
        return
    for recipe in RECIPES:
        if recipe.advice is not None and layout.config.get("model_type") in recipe.model_types:
            raise LoadError(
                f"{layout.config.source}: the prompt of this reranker is not known; {recipe.advice}, or "
                "convert='embed' to embed with its encoder"
            )


def load_builtin_template(name: str) -> ScoreTemplate:
    folder = files_of("cenote") / "inputs" / "score_templates"
    return ScoreTemplate(
        (folder / f"{name}.jinja").read_text(encoding="utf-8"),
        name,
        is_document_verbatim=name not in NON_VERBATIM_TEMPLATES,
    )


def _template_from_options(options: EngineConfig) -> Sourced[ScoreTemplate] | None:
    """Return the template set by score_template, else by chat_template."""
    if options.score_template in TEMPLATE_NAMES:
        return Sourced(load_builtin_template(options.score_template), SCORE_TEMPLATE_OPTION)
    if options.score_template not in ("auto", "none"):
        known = f"auto, none, {', '.join(TEMPLATE_NAMES)}"
        try:
            text = read_template_text(options.score_template, SCORE_TEMPLATE_OPTION)
        except LoadError as error:
            raise LoadError(f"{error}; built-in values: {known}") from error
        return Sourced(ScoreTemplate(text or "", "given", is_user_given=True), SCORE_TEMPLATE_OPTION)
    text = read_template_text(options.chat_template, "chat_template")
    return None if text is None else Sourced(ScoreTemplate(text, "given", is_user_given=True), "chat_template")


def _find_recipe(options: EngineConfig, layout: Layout) -> Sourced[RerankerRecipe] | None:
    """Return the published reranker this checkpoint is, or is derived from, with the evidence as source."""
    for recipe in RECIPES:
        if options.score_template == recipe.name:
            return Sourced(recipe, SCORE_TEMPLATE_OPTION)
    if options.score_template == "none":
        return None
    for recipe in RECIPES:
        is_replaced = recipe.code is not None and layout.files.logit_score is not None
        if layout.config.get("model_type") in recipe.model_types and not is_replaced:
            for source in _iter_evidence(recipe, layout):
                return Sourced(recipe, source)
    return None


def _iter_evidence(recipe: RerankerRecipe, layout: Layout) -> Iterator[str]:
    """Yield evidence in the files for a recipe, most reliable first."""
    checkpoint, config, card = layout.checkpoint, layout.config, layout.card
    given = read_token_labels(config)
    if given is not None and (given.tokens, given.method) == (recipe.tokens, recipe.method):
        yield given.source
    if recipe.file is not None and checkpoint.find_file(recipe.file) is not None:
        yield recipe.file
    if recipe.code is not None and f"{recipe.code}." in str(config.get("auto_map", "")):
        yield f"config.json auto_map {recipe.code}"
    for name in checkpoint.candidate_names:
        if recipe.name_pattern.search(name):
            yield f"the name {name}"
    if recipe.name_pattern.search(str(config.get("_name_or_path", ""))):
        yield "config.json _name_or_path"
    sentence = recipe.prompt_sentence
    if sentence is not None and sentence in (read_chat_template(checkpoint) or ""):
        yield "the chat template"
    if card.pipeline_tag is None or card.pipeline_tag in RANKING_TAGS:
        for name in card.base_models:
            if recipe.name_pattern.search(name):
                yield f"README.md base_model {name}"
    if card.pipeline_tag in RANKING_TAGS and sentence is not None and sentence in card.text:
        yield f"README.md pipeline_tag {card.pipeline_tag} and its prompt"


def _labels_from_logit_score(files: SentenceTransformersFiles) -> TokenLabels | None:
    if files.logit_score is None:
        return None
    true, false = files.logit_score.value
    if false is None:
        return TokenLabels((true,), "no_post_processing", files.logit_score.source)
    return TokenLabels((false, true), "from_2_way_softmax", files.logit_score.source)


def _template_from_files(layout: Layout, recipe: RerankerRecipe | None) -> Sourced[ScoreTemplate] | None:
    """Return the chat template if Sentence Transformers files apply it to pairs and it supports documents."""
    files, text = layout.files, read_chat_template(layout.checkpoint)
    if files.messages is None or text is None or (recipe is not None and "document" not in text):
        return None
    template = ScoreTemplate(
        text,
        "chat template",
        variables={"add_generation_prompt": False, **files.messages.value.variables},
        instruction=files.prompts.get(files.default_prompt_name or ""),
        has_system_message=True,
        has_content_parts=files.messages.value.uses_content_parts,
        add_special_tokens=False,  # the chat template writes them
    )
    return Sourced(template, files.messages.source)
