"""Rerankers made of language models: how their files tell them from other models, and how they are asked."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any

import yaml

from cenote.config.engine import EngineConfig, Sourced
from cenote.errors import BadRequest
from cenote.loading.causal_lm_classifier import TokenLabels, token_labels
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.sentence_transformers import SentenceTransformers
from cenote.loading.tokenizer_files import read_chat_template
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.registry import Entry
from cenote.protocol.input_types import ScoreTemplate

logger = logging.getLogger("cenote")

OPTION = "score_template"
# tags of model cards that a reranker may have; one with another tag was made into something else
RANKING_TAGS = ("text-ranking", "text-classification")
MAX_CARD_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """A published reranker: what tells its checkpoints, and the tokens that answer after its prompt."""

    name: str  # of its template as well
    model_type: str  # in config.json
    names: re.Pattern[str]  # of repositories and folders
    sentence: str  # of its prompt, which chat templates and model cards repeat
    tokens: tuple[str, ...]
    method: str

    def labels(self, source: str) -> TokenLabels:
        return TokenLabels(self.tokens, self.method, source)


JUDGE = "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
RECIPES = (
    Recipe(
        "qwen3_reranker",
        "qwen3",
        re.compile(r"qwen3[-_.]?reranker", re.IGNORECASE),
        JUDGE,
        ("no", "yes"),
        "from_2_way_softmax",
    ),
    Recipe(
        "qwen3_vl_reranker",
        "qwen3_vl",
        re.compile(r"qwen3[-_.]?vl[-_.]?reranker", re.IGNORECASE),
        JUDGE,
        ("no", "yes"),
        "from_2_way_softmax",
    ),
    Recipe(
        "mxbai_rerank_v2",
        "qwen2",
        re.compile(r"mxbai[-_]rerank[-_]\w+[-_]v2", re.IGNORECASE),
        "You are a search relevance expert who evaluates how well documents match search queries.",
        ("0", "1"),
        "from_2_way_softmax",
    ),
    Recipe(
        "bge_reranker_v2_gemma",
        "gemma",
        re.compile(r"bge[-_]reranker[-_]v2[-_]gemma", re.IGNORECASE),
        "Given a query A and a passage B, determine whether the passage contains an answer to the query",
        ("Yes",),
        "no_post_processing",
    ),
)
TEMPLATES = (*(recipe.name for recipe in RECIPES), "nemotron_rerank", "nemotron_vl_rerank", "jina_reranker_m0")
# in these the document does not stand as it is
REWRITING = ("nemotron_vl_rerank",)


@dataclass(frozen=True, slots=True)
class Reranker:
    """What was found: the tokens that answer, where a head must be made of them, and the text around a pair."""

    labels: TokenLabels | None = None
    template: Sourced[ScoreTemplate] | None = None
    is_known: bool = False  # a published one, whose score is a probability whatever other programs make of it


def find_reranker(
    options: EngineConfig,
    checkpoint: Checkpoint,
    config: HFConfig,
    entry: Entry,
    family: Architecture,
    files: SentenceTransformers,
    *,
    one_label: bool,
) -> Reranker:
    """Everything that options and files say about it; an empty one for any other model."""
    given = token_labels(config)
    users = _users_template(options)
    embeds = options.convert == "embed" or any((files.pooling, files.splade, files.multi_vector))
    scores = entry.form == "causal" or given is not None or (entry.form == "sequence" and one_label)
    if embeds or not scores or not entry.native:
        return Reranker(given, users)
    recipe = _recipe(options, checkpoint, config)
    labels = given
    if labels is None and entry.form == "causal":
        labels = _logit_score(files) or (recipe.value.labels(recipe.source) if recipe else None)
        if labels is None:
            _warn_of_unknown(checkpoint)
            return Reranker(None, users)
    if users is not None or options.score_template == "none":
        return Reranker(labels, users, recipe is not None)
    template = _own_template(checkpoint, files, recipe)
    if template is None and recipe is not None:
        template = Sourced(built_in(recipe.value.name), recipe.source)
    if template is None and family.score_template is not None:
        template = Sourced(built_in(family.score_template), f"architecture {entry.name}")
    return Reranker(labels, template, recipe is not None)


def built_in(name: str) -> ScoreTemplate:
    folder = files_of("cenote") / "inputs" / "score_templates"
    return ScoreTemplate((folder / f"{name}.jinja").read_text(encoding="utf-8"), name, verbatim=name not in REWRITING)


def template_text(given: str | None, option: str) -> str | None:
    """Jinja text, from a file where the option names one."""
    if given is None or "{" in given or "\n" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{option} {given!r} is neither Jinja text nor a file: {error.strerror}") from error


def _users_template(options: EngineConfig) -> Sourced[ScoreTemplate] | None:
    """What the user gave for pairs, else for everything."""
    if options.score_template in TEMPLATES:
        return Sourced(built_in(options.score_template), OPTION)
    if options.score_template not in ("auto", "none"):
        known = f"auto, none, {', '.join(TEMPLATES)}"
        try:
            text = template_text(options.score_template, OPTION)
        except BadRequest as error:
            raise BadRequest(f"{error.message}; there are also: {known}", param=OPTION) from error
        return Sourced(ScoreTemplate(text or "", "given"), OPTION)
    text = template_text(options.chat_template, "chat_template")
    return None if text is None else Sourced(ScoreTemplate(text, "given"), "chat_template")


def _recipe(options: EngineConfig, checkpoint: Checkpoint, config: HFConfig) -> Sourced[Recipe] | None:
    """The published reranker that this is, or was made of, and what tells it."""
    for recipe in RECIPES:
        if options.score_template == recipe.name:
            return Sourced(recipe, OPTION)
    if options.score_template == "none":
        return None
    for recipe in RECIPES:
        if config.get("model_type") == recipe.model_type:
            for source in _evidence(recipe, checkpoint, config):
                return Sourced(recipe, source)
    return None


def _evidence(recipe: Recipe, checkpoint: Checkpoint, config: HFConfig) -> Iterator[str]:
    """Whatever in the files speaks for it, the surest first."""
    given = token_labels(config)
    if given is not None and (given.tokens, given.method) == (recipe.tokens, recipe.method):
        yield given.source
    for name in _names(checkpoint):
        if recipe.names.search(name):
            yield f"the name {name}"
    if recipe.names.search(str(config.get("_name_or_path", ""))):
        yield "config.json _name_or_path"
    if recipe.sentence in (read_chat_template(checkpoint) or ""):
        yield "the chat template"
    card = _Card.of(checkpoint)
    if card.tag is None or card.tag in RANKING_TAGS:
        for name in card.base_models:
            if recipe.names.search(name):
                yield f"README.md base_model {name}"
    if card.tag in RANKING_TAGS and recipe.sentence in card.text:
        yield f"README.md pipeline_tag {card.tag} and its prompt"


def _names(checkpoint: Checkpoint) -> Iterator[str]:
    """What the model is called: as it was asked for, its folder, and its entry in the hub's cache."""
    yield checkpoint.name.rstrip("/").rpartition("/")[2]
    folder = checkpoint.folder.resolve()
    yield folder.name
    if folder.parent.name == "snapshots":
        yield folder.parent.parent.name.rpartition("--")[2]


@dataclass(frozen=True, slots=True)
class _Card:
    """The model card: what its head says in YAML, and the text."""

    tag: str | None = None
    base_models: tuple[str, ...] = ()
    text: str = ""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> _Card:
        if (path := checkpoint.path("README.md")) is None:
            return cls()
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CARD_CHARS)
        head = _card_head(text)
        tag, base = head.get("pipeline_tag"), head.get("base_model") or ()
        names = [base] if isinstance(base, str) else base if isinstance(base, list) else []
        return cls(tag if isinstance(tag, str) else None, tuple(map(str, names)), text)


def _card_head(text: str) -> Mapping[str, Any]:
    if not text.startswith("---"):
        return {}
    try:
        head = yaml.safe_load(text[3:].partition("\n---")[0])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}  # a card is written for people, and nothing depends on it alone
    return head if isinstance(head, dict) else {}


def _logit_score(files: SentenceTransformers) -> TokenLabels | None:
    if files.logit_score is None:
        return None
    true, false = files.logit_score.value
    if false is None:
        return TokenLabels((true,), "no_post_processing", files.logit_score.source)
    return TokenLabels((false, true), "from_2_way_softmax", files.logit_score.source)


def _own_template(
    checkpoint: Checkpoint, files: SentenceTransformers, recipe: Sourced[Recipe] | None
) -> Sourced[ScoreTemplate] | None:
    """The chat template, where Sentence Transformers files say that pairs go through it and it knows documents."""
    text = read_chat_template(checkpoint)
    if files.messages is None or text is None or (recipe is not None and "document" not in text):
        return None
    template = ScoreTemplate(
        text,
        "chat template",
        variables={"add_generation_prompt": False, **files.messages.value.variables},
        instruction=files.prompts.get(files.default_prompt_name or ""),
        has_system=True,
        in_parts=files.messages.value.in_parts,
        adds_special_tokens=False,  # a chat template has them
    )
    return Sourced(template, files.messages.source)


def _warn_of_unknown(checkpoint: Checkpoint) -> None:
    if _Card.of(checkpoint).tag == "text-ranking":
        logger.warning(
            "%s says text-ranking, but not how the model is asked: it becomes an embedder. To make it a reranker, give "
            'chat_template and hf_overrides={"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}',
            checkpoint.folder / "README.md",
        )
