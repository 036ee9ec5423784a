"""Compare what a model card and the model's names say with how the files were understood.

A card may be wrong, so it changes nothing: it agrees, raises a doubt, or has a model refused that was a guess anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cenote.loading.model_card import PublishedCard
from cenote.models.published_models import GENERAL_ENCODERS
from cenote.models.registry import CheckpointKind

EMBEDDERS: tuple[CheckpointKind, ...] = ("embed", "hybrid", "masked", "sparse", "multi_vector")
RERANKERS: tuple[CheckpointKind, ...] = ("sequence", "listwise", "reward", "multi_vector", "sparse", "hybrid")
CLASSIFIERS: tuple[CheckpointKind, ...] = ("sequence", "reward", "entities")
TOKEN_CLASSIFIERS: tuple[CheckpointKind, ...] = ("token", "reward", "entities")
# pipeline_tag -> the kinds of model that it stands for
KINDS_BY_TAG: Mapping[str, tuple[CheckpointKind, ...]] = {
    "feature-extraction": (*EMBEDDERS, "reward", "listwise"),
    "sentence-similarity": EMBEDDERS,
    "text-ranking": RERANKERS,
    "text-classification": (*CLASSIFIERS, "listwise"),
    "zero-shot-classification": CLASSIFIERS,
    "token-classification": TOKEN_CLASSIFIERS,
}
# of language models that no file turns into a pooling model
GENERATION_TAGS = (
    *("text-generation", "text2text-generation", "summarization", "translation", "image-to-text"),
    *("image-text-to-text", "video-text-to-text", "audio-text-to-text", "visual-question-answering", "any-to-any"),
)
# of models whose texts, if they have any, are not what they are about
OTHER_TAGS = (
    *("automatic-speech-recognition", "audio-classification", "audio-to-audio", "voice-activity-detection"),
    *("text-to-speech", "text-to-audio", "text-to-image", "text-to-video", "image-to-image", "image-segmentation"),
    *("object-detection", "depth-estimation", "time-series-forecasting", "reinforcement-learning", "robotics"),
)
KINDS_BY_LIBRARY: Mapping[str, tuple[CheckpointKind, ...]] = {
    "pylate": ("multi_vector",),
    "gliner": ("entities",),
    "setfit": CLASSIFIERS,
}
# calls in example code, and what they load
KINDS_BY_CALL: Mapping[str, tuple[CheckpointKind, ...]] = {
    "SentenceTransformer": EMBEDDERS,
    "SparseEncoder": ("sparse",),
    "MultiVectorEncoder": ("multi_vector",),
    "CrossEncoder": RERANKERS,
    "AutoModelForSequenceClassification.from_pretrained": CLASSIFIERS,
    "AutoModelForTokenClassification.from_pretrained": TOKEN_CLASSIFIERS,
}
CALL = re.compile(rf"\b({'|'.join(map(re.escape, KINDS_BY_CALL))})\(\s*[\"']([^\"'\n]{{1,200}})[\"']")
POOLING_CODE = {
    "MEAN": re.compile(r"\b(mean_pool(?:ing)?|average_pool(?:ing)?|avg_pool(?:ing)?)\("),
    "LAST": re.compile(r"\b(last_token_pool(?:ing)?)\("),
    "CLS": re.compile(r"\b(cls_pool(?:ing)?(?=\()|last_hidden_state\[:, ?0(?:, ?:)?\])"),
    "POOLER": re.compile(r"\.(pooler_output)\b"),
}
NORMALIZATION = re.compile(r"normali[sz]|\.norm\(", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """How a checkpoint was understood, before its model card is read."""

    kind: CheckpointKind
    architecture: str
    config_file: str = "config.json"
    is_declared: bool = False  # an option, or files of Sentence Transformers, say what kind of model it is
    is_converted: bool = False  # a language model, used as an embedder since nothing says what it is
    default_pooling: str | None = None  # of the architecture, if nothing else decides the pooling
    normalizes_by_default: bool = False  # nothing else decides that
    has_modules: bool = True  # modules.json
    lacks_pair_prompt: bool = False  # a reranker made of a decoder, without a score template


@dataclass(frozen=True, slots=True)
class CardEvidence:
    """What the model card says about a model, and how that compares with its use."""

    facts: Mapping[str, str | list[str]] = field(default_factory=dict)
    agrees: bool = False
    doubts: tuple[str, ...] = ()
    refusal: str | None = None


def weigh_card(card: PublishedCard, names: Sequence[str], use: ModelUse) -> CardEvidence:
    """Compare the card, and the names of the model (without their owners), with its use."""
    if use.is_converted and card.pipeline_tag in OTHER_TAGS:
        refusal = (
            f"{card.source} has pipeline_tag {card.pipeline_tag}, and nothing says how {use.architecture} makes "
            "embeddings of texts; use convert='embed' to accept those of its last token"
        )
        return CardEvidence(card.facts, refusal=refusal)
    kinds = KINDS_BY_TAG.get(card.pipeline_tag or "")
    doubts = [_find_kind_doubt(card, names, use), _find_pooling_doubt(card, use), _find_prompt_doubt(card, names, use)]
    if not any(doubts):
        doubts.append(_find_default_doubt(card, use))
    agrees = kinds is not None and use.kind in kinds
    return CardEvidence(card.facts, agrees, tuple(doubt for doubt in doubts if doubt is not None))


def _find_kind_doubt(card: PublishedCard, names: Sequence[str], use: ModelUse) -> str | None:
    """Return the first contradiction between card and kind; entries of the front matter count more than code."""
    for claim, kinds, is_library in _iter_claims(card, names, use):
        if use.kind in kinds:
            return None
        if is_library:
            return f"{claim}, but {use.architecture} is loaded as {use.kind}: what that library adds to it is not used"
        if not use.is_declared:
            return f"{claim}, but {_describe_use(use, kinds)}"
    return None


def _iter_claims(
    card: PublishedCard, names: Sequence[str], use: ModelUse
) -> Iterator[tuple[str, tuple[CheckpointKind, ...], bool]]:
    """Yield what the model is said to be, the kinds that would be right, and whether it is said by a library."""
    if (kinds := KINDS_BY_LIBRARY.get((card.library_name or "").lower())) is not None:
        yield f"{card.source} has library_name {card.library_name}", kinds, True
    if (kinds := KINDS_BY_TAG.get(card.pipeline_tag or "")) is not None:
        yield f"{card.source} has pipeline_tag {card.pipeline_tag}", kinds, False
    calls = [call for call, name in CALL.findall(card.text) if name.rstrip("/").rpartition("/")[2] in names]
    if calls:
        right = tuple(kind for call in calls for kind in KINDS_BY_CALL[call])
        yield f"the example code of {card.source} loads the model with {calls[0]}", right, False
    said = {name: f"{card.source} has base_model {name}" for name in card.base_models}
    said |= {name: f"the model is called {name}" for name in names}
    is_named_embedder = any("embed" in name.lower() for name in said)
    if card.pipeline_tag in GENERATION_TAGS and use.is_converted and not is_named_embedder:
        yield f"{card.source} has pipeline_tag {card.pipeline_tag}", (), False
    for name, claim in said.items():
        if "rerank" in name.lower() and use.kind in ("embed", "masked"):
            yield claim, RERANKERS, False


def _describe_use(use: ModelUse, expected: tuple[CheckpointKind, ...]) -> str:
    """Return how the model is loaded instead, and how to load it as what it is said to be."""
    if not expected:
        return (
            f"nothing says how {use.architecture} makes embeddings: loading as embedder. To accept that, set "
            "convert='embed'; for an embedder made of it, load a folder with modules.json"
        )
    if "embed" in expected:
        return f"{use.architecture} is loaded as {use.kind}; convert='embed' loads an embedder"
    if use.kind not in ("embed", "masked") or not {"sequence", "token"} & {*expected}:
        return f"{use.architecture} is loaded as {use.kind}; if that is wrong, download all files of the model"
    if expected == RERANKERS and use.is_converted:
        return (
            "its prompt is unknown: loading as embedder. To load a reranker, set score_template, or chat_template and "
            'hf_overrides={"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}'
        )
    head, labels = "ForSequenceClassification" if "sequence" in expected else "ForTokenClassification", ""
    what = "classifier"
    if expected == RERANKERS:
        what, labels = "reranker", ', "num_labels": 1'
    return (
        f"config.json names {use.architecture}: loading as embedder. To load a {what}, name the classifier in "
        f'hf_overrides={{"architectures": ["...{head}"]{labels}}}; convert=\'embed\' accepts the embedder'
    )


def _find_pooling_doubt(card: PublishedCard, use: ModelUse) -> str | None:
    """Return a doubt about a pooling that nothing but the architecture decides."""
    if use.kind not in ("embed", "masked") or use.default_pooling is None:
        return None
    here = f"pooling {use.default_pooling} is the default of {use.architecture}"
    if not use.has_modules and "sentence-transformers" in (card.library_name, *card.tags):
        entry = "library_name" if card.library_name == "sentence-transformers" else "the tag"
        return (
            f"{card.source} has {entry} sentence-transformers, but there is no modules.json, and {here}; download "
            "it with the files it names, or set pooler_config pooling_type (Sentence Transformers would use MEAN)"
        )
    used = _find_pooling_code(card)
    if len(used) != 1 or use.default_pooling in used:
        return None
    ((method, function),) = used.items()
    if method == "POOLER":
        return (
            f"the example code of {card.source} uses {function}, but {here}, without the pooler; if embeddings are "
            'wrong, set hf_overrides={"_name_or_path": "sup-simcse-bert-base-uncased"}, which uses it as SimCSE does'
        )
    config: dict[str, str | bool] = {"pooling_type": method}
    if _lacks_normalization(card, use):
        config["use_activation"] = False
    return (
        f"the example code of {card.source} pools with {function}, but {here}; if embeddings are wrong, set "
        f"pooler_config={json.dumps(config)}"
    )


def _find_default_doubt(card: PublishedCard, use: ModelUse) -> str | None:
    """Return a doubt about the default pooling of an encoder that is published for any use."""
    is_open = use.kind == "embed" and use.default_pooling is not None and not (use.is_declared or use.has_modules)
    if not is_open or use.architecture not in GENERAL_ENCODERS:
        return None
    if use.default_pooling not in _find_pooling_code(card):
        return (
            f"{use.config_file}: no file says how {use.architecture} makes embeddings; pooling is "
            f"{use.default_pooling}, as in vLLM. If the model's page pools otherwise, set pooler_config, such as "
            '{"pooling_type": "MEAN"}; setting it ends this warning'
        )
    if not _lacks_normalization(card, use):
        return None
    return (
        f"the example code of {card.source} pools as {use.architecture} does by default ({use.default_pooling}), but "
        'does not normalize embeddings; to get dot products as there, set pooler_config={"use_activation": false}. '
        "Cosines are equal; setting true ends this warning"
    )


def _lacks_normalization(card: PublishedCard, use: ModelUse) -> bool:
    """Return whether embeddings are normalized only by default, and the card says nothing of that."""
    return use.normalizes_by_default and NORMALIZATION.search(card.text) is None


def _find_pooling_code(card: PublishedCard) -> dict[str, str]:
    """Return the pooling methods that the example code uses, with the function or expression that shows it."""
    return {method: match[1] for method, code in POOLING_CODE.items() if (match := code.search(card.text))}


def _find_prompt_doubt(card: PublishedCard, names: Sequence[str], use: ModelUse) -> str | None:
    """Return a doubt about a reranker whose query and document are joined without the prompt it was trained with."""
    is_named_reranker = any("rerank" in name.lower() for name in (*names, *card.base_models))
    is_reranker = card.pipeline_tag == "text-ranking" or is_named_reranker
    if not (use.lacks_pair_prompt and is_reranker):
        return None
    return (
        f"{use.architecture} is used as a reranker, but its prompt is unknown: query and document are joined as they "
        "are; set score_template to the prompt it was trained with, or to 'none' if it has none"
    )
