"""Detect rerankers based on language models, and their label tokens and score templates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files as files_of

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.causal_lm_classifier import TokenLabels, read_token_labels
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.kalm_reranker import KALM_FILE, read_template_variables
from cenote.loading.model_card import ModelCard
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.loading.template_files import read_template_text
from cenote.loading.tokenizer_files import read_chat_template
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.refused_models import check_name_not_refused
from cenote.models.registry import ArchitectureEntry
from cenote.protocol.input_types import ScoreTemplate

SCORE_TEMPLATE_OPTION = "score_template"
# pipeline tags of rerankers; fine-tuned models with another tag are not rerankers
RANKING_TAGS = ("text-ranking", "text-classification")


@dataclass(frozen=True, slots=True)
class RerankerRecipe:
    """A published reranker: how its checkpoints are recognised, and its label tokens."""

    name: str  # also the name of its score template
    model_types: tuple[str, ...]  # of config.json
    name_pattern: re.Pattern[str]  # of repository and folder names
    prompt_sentence: str | None  # part of its prompt, found in chat templates and model cards
    tokens: tuple[str | int, ...]  # vocabulary entries or token ids
    method: str
    file: str | None = None  # that no other model has
    scale: float = 1.0  # of the logits
    code: str | None = None  # file of the repository's own code, in auto_map; LogitScore files replace it
    activation: str | None = None  # of the score, if it is not a probability; None: whatever config.json says

    def make_labels(self, source: str) -> TokenLabels:
        return TokenLabels(self.tokens, self.method, source, self.scale)


QWEN3_PROMPT_SENTENCE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
)
RECIPES = (
    RerankerRecipe(
        "qwen3_reranker",
        ("qwen3",),
        re.compile(r"qwen3[-_.]?reranker", re.IGNORECASE),
        QWEN3_PROMPT_SENTENCE,
        ("no", "yes"),
        "from_2_way_softmax",
    ),
    RerankerRecipe(
        "qwen3_vl_reranker",
        ("qwen3_vl",),
        re.compile(r"qwen3[-_.]?vl[-_.]?reranker", re.IGNORECASE),
        QWEN3_PROMPT_SENTENCE,
        ("no", "yes"),
        "from_2_way_softmax",
    ),
    RerankerRecipe(
        "mxbai_rerank_v2",
        ("qwen2",),
        re.compile(r"mxbai[-_]rerank[-_]\w+[-_]v2", re.IGNORECASE),
        "You are a search relevance expert who evaluates how well documents match search queries.",
        ("0", "1"),
        "from_2_way_softmax",
    ),
    RerankerRecipe(
        "bge_reranker_v2_gemma",
        ("gemma",),
        re.compile(r"bge[-_]reranker[-_]v2[-_]gemma", re.IGNORECASE),
        "Given a query A and a passage B, determine whether the passage contains an answer to the query",
        ("Yes",),
        "no_post_processing",
    ),
    RerankerRecipe(
        "monot5",
        ("t5",),
        re.compile(r"mono[-_]?t5", re.IGNORECASE),
        "Query: {query} Document: {document} Relevant:",
        ("\u2581false", "\u2581true"),
        "from_2_way_softmax",
    ),
    RerankerRecipe(
        "kalm_reranker_v1",
        ("t5gemma2",),
        re.compile(r"kalm[-_]reranker[-_]v1", re.IGNORECASE),
        QWEN3_PROMPT_SENTENCE,
        ("no", "yes"),
        "from_2_way_softmax",
        file=KALM_FILE,
    ),
    # zerank-1, zerank-1-small, and zerank-2 before it had files of Sentence Transformers
    RerankerRecipe(
        "zerank",
        ("qwen3",),
        re.compile(r"zerank[-_]1", re.IGNORECASE),
        None,
        ("Yes",),
        "no_post_processing",
        scale=0.2,
        code="modeling_zeranker",
    ),
    # the score is the logit of the first vocabulary entry, whatever that is
    RerankerRecipe(
        "ctxl_rerank_v2",
        ("qwen3", "mistral"),
        re.compile(r"ctxl[-_]rerank[-_]v2", re.IGNORECASE),
        "Check whether a given document contains information helpful to answer the query.",
        (0,),
        "no_post_processing",
        activation="identity",
    ),
)
ARCHITECTURE_TEMPLATES = (
    "bge_reranker_v2_minicpm",
    "bge_reranker_v2_5_gemma2",
    "hhem",
    "nemotron_rerank",
    "nemotron_vl_rerank",
    "jina_reranker_m0",
    "querit",
)
TEMPLATE_NAMES = (*(recipe.name for recipe in RECIPES), *ARCHITECTURE_TEMPLATES)
# templates that do not contain the document verbatim
NON_VERBATIM_TEMPLATES = ("nemotron_vl_rerank", "zerank")


@dataclass(frozen=True, slots=True)
class RerankerSettings:
    """Label tokens (if the head must be made of them) and score template of a reranker."""

    labels: TokenLabels | None = None
    template: Sourced[ScoreTemplate] | None = None
    recipe: RerankerRecipe | None = None  # of a published reranker


def detect_reranker(
    options: EngineConfig,
    checkpoint: Checkpoint,
    config: HFConfig,
    entry: ArchitectureEntry,
    family: Architecture,
    files: SentenceTransformersFiles,
    card: ModelCard,
    *,
    has_one_label: bool,
) -> RerankerSettings:
    """Return the reranker settings of options and files; empty if the model is not a reranker."""
    given = read_token_labels(config)
    users = _template_from_options(options)
    embeds = options.convert == "embed" or any((files.pooling, files.splade, files.multi_vector))
    scores = entry.kind == "causal" or given is not None or (entry.kind == "sequence" and has_one_label)
    if embeds or not scores or not entry.is_native:
        return RerankerSettings(given, users)
    recipe = _find_recipe(options, checkpoint, config, files, card)
    labels = given
    if labels is None and entry.kind == "causal":
        labels = _labels_from_logit_score(files) or (recipe.value.make_labels(recipe.source) if recipe else None)
        if labels is None:
            check_name_not_refused(checkpoint.candidate_names, config)
            return RerankerSettings(None, users)
    if users is not None or options.score_template == "none":
        return RerankerSettings(labels, users, recipe.value if recipe else None)
    template = _template_from_files(checkpoint, files, recipe)
    if template is None and recipe is not None:
        variables = read_template_variables(config, files.prompts.get(files.default_prompt_name or ""))
        template = Sourced(replace(load_builtin_template(recipe.value.name), variables=variables), recipe.source)
    if template is None and family.score_template is not None:
        template = Sourced(load_builtin_template(family.score_template), f"architecture {entry.name}")
    return RerankerSettings(labels, template, recipe.value if recipe else None)


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


def _find_recipe(
    options: EngineConfig,
    checkpoint: Checkpoint,
    config: HFConfig,
    files: SentenceTransformersFiles,
    card: ModelCard,
) -> Sourced[RerankerRecipe] | None:
    """Return the published reranker this checkpoint is, or is derived from, with the evidence as source."""
    for recipe in RECIPES:
        if options.score_template == recipe.name:
            return Sourced(recipe, SCORE_TEMPLATE_OPTION)
    if options.score_template == "none":
        return None
    for recipe in RECIPES:
        is_replaced = recipe.code is not None and files.logit_score is not None
        if config.get("model_type") in recipe.model_types and not is_replaced:
            for source in _iter_evidence(recipe, checkpoint, config, card):
                return Sourced(recipe, source)
    return None


def _iter_evidence(recipe: RerankerRecipe, checkpoint: Checkpoint, config: HFConfig, card: ModelCard) -> Iterator[str]:
    """Yield evidence in the files for a recipe, most reliable first."""
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


def _template_from_files(
    checkpoint: Checkpoint, files: SentenceTransformersFiles, recipe: Sourced[RerankerRecipe] | None
) -> Sourced[ScoreTemplate] | None:
    """Return the chat template if Sentence Transformers files apply it to pairs and it supports documents."""
    text = read_chat_template(checkpoint)
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
