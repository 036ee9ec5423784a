"""Apply the settings and defaults of tokenizer classes over tokenizer.json.

A class of Transformers 5 takes the vocabulary, merges and added tokens of tokenizer.json, and builds the normalizer and
the pre-tokenizer from tokenizer_config.json and its own defaults. A generic class uses tokenizer.json as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from cenote.loading.added_tokens import DEFAULT_TOKENS
from cenote.loading.legacy_tokenizers.byte_level import split_as_qwen
from cenote.loading.legacy_tokenizers.chinese import use_jieba
from cenote.loading.legacy_tokenizers.source import (
    TokenizerSettings,
    albert_steps,
    set_bert_template,
    set_roberta_template,
    set_template,
)
from cenote.loading.legacy_tokenizers.wordpiece import bert_normalizer

logger = logging.getLogger("cenote")

QWEN3_5_SPLIT_PATTERN = (  # like Qwen2's, with the marks of other scripts inside words
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACE = "\u2581"  # of SentencePiece
# case, accents, CJK, digits, punctuation and spaces: what normalizers and pre-tokenizers treat differently
PROBE = "Caf\u00e9 WATER'S e\u0301, 2024 \u4e2d\u6587  end.\nLine ``x''"


BERT_TEMPLATE_CLASSES = (
    *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "AlbertTokenizer"),
    *("DebertaTokenizer", "DebertaV2Tokenizer", "RoFormerTokenizer"),
)
ROBERTA_TEMPLATE_CLASSES = (
    *("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "MPNetTokenizer"),
    *("XLMRobertaTokenizer", "CamembertTokenizer"),
)
# key of tokenizer_config.json, the tokenizer component it applies to, and the attribute there
COMPONENT_SETTINGS = (
    ("do_lower_case", "BertNormalizer", "lowercase"),
    ("strip_accents", "BertNormalizer", "strip_accents"),
    ("tokenize_chinese_chars", "BertNormalizer", "handle_chinese_chars"),
    ("add_prefix_space", "ByteLevel", "add_prefix_space"),
)


class ClassSettings(NamedTuple):
    """The settings a tokenizer class reads, the algorithm it requires, and the function that applies them."""

    algorithm: str
    keys: tuple[str, ...]
    apply: Callable[[Tokenizer, TokenizerSettings], None]


def apply_class_settings(tokenizer: Tokenizer, class_name: str, settings: TokenizerSettings, path: Path) -> None:
    """Set the normalizer and pre-tokenizer of the class; warn if they change results and no setting asks for it."""
    known = CLASSES.get(class_name)
    if known is None or type(tokenizer.model).__name__ != known.algorithm:
        _apply_to_components(tokenizer, settings)
        return
    before = tokenizer.encode(PROBE).ids
    known.apply(tokenizer, settings)
    if tokenizer.encode(PROBE).ids != before and not any(key in settings for key in known.keys):
        logger.warning(
            "%s: the normalizer or pre-tokenizer differs from that of %s, which is used, as in Transformers 5; if the "
            'file is right, set "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json%s',
            path,
            class_name,
            f" or {known.keys[0]}" if known.keys else "",
        )


def add_class_template(tokenizer: Tokenizer, class_name: str, names: Mapping[str, str]) -> None:
    """Add the special-token template of the class to a tokenizer.json that has none; one that it has is kept."""
    tokens = {**DEFAULT_TOKENS.get(class_name, {}), **names}
    if tokenizer.post_processor is not None:
        return
    if class_name in BERT_TEMPLATE_CLASSES:
        set_bert_template(tokenizer, tokens)
    elif class_name in ROBERTA_TEMPLATE_CLASSES:
        set_roberta_template(tokenizer, tokens)
    elif class_name == "T5Tokenizer":
        end = tokens["eos_token"]
        set_template(tokenizer, f"$A {end}", f"$A {end} $B {end}", end)


def _apply_to_components(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    """Apply the settings of a class without an entry below, or with another algorithm, to the file's components."""
    components = {"BertNormalizer": tokenizer.normalizer, "ByteLevel": tokenizer.pre_tokenizer}
    for name, kind, attribute in COMPONENT_SETTINGS:
        if isinstance(settings.get(name), bool) and type(components[kind]).__name__ == kind:
            setattr(components[kind], attribute, settings[name])


def _apply_bert(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    tokenizer.normalizer = bert_normalizer(settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def _apply_byte_level(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))


def _apply_qwen3_5(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    split_as_qwen(tokenizer, settings, QWEN3_5_SPLIT_PATTERN)


def _apply_words(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    """XLM-RoBERTa and CamemBERT: the character map of the file, then words at white space."""
    steps = _charsmap(tokenizer)
    tokenizer.normalizer = steps[0] if steps else None
    tokenizer.pre_tokenizer = _split_words(adds_space=settings.get("add_prefix_space", True))


def _apply_t5(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    _apply_words(tokenizer, {})


def _apply_albert(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    steps = albert_steps(settings, lower_case=True)
    tokenizer.normalizer = normalizers.Sequence([*steps, *_charsmap(tokenizer)])
    tokenizer.pre_tokenizer = _split_words(adds_space=settings.get("add_prefix_space", True))


def _apply_deberta_v2(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    steps: list[Any] = [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    tokenizer.normalizer = normalizers.Sequence(
        [*steps, spaces, normalizers.NFC(), normalizers.Strip(left=False, right=True)]
    )
    scheme = "always" if settings.get("add_prefix_space", True) else "first"
    words: list[Any] = [pre_tokenizers.Punctuation("isolated")] if settings.get("split_by_punct", False) else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, pre_tokenizers.Metaspace(SPACE, scheme)])


def _apply_llama(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    adds_space = settings.get("add_prefix_space")
    first = "always" if settings.get("legacy", False) else "first"
    scheme = first if adds_space is None or adds_space else "never"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)


def _apply_gemma(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")


def _split_words(*, adds_space: bool) -> pre_tokenizers.PreTokenizer:
    pieces = pre_tokenizers.Metaspace(SPACE, "always" if adds_space else "never")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])


def _charsmap(tokenizer: Tokenizer) -> list[normalizers.Precompiled]:
    """Return the first character map of SentencePiece in tokenizer.json, if it has one."""
    normalizer = tokenizer.normalizer
    parts: list[Any] = list(normalizer) if isinstance(normalizer, normalizers.Sequence) else [normalizer]  # type: ignore[call-overload]
    return [part for part in parts if isinstance(part, normalizers.Precompiled)][:1]


_BERT_KEYS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_BERT = ClassSettings("WordPiece", _BERT_KEYS, _apply_bert)
_BYTE_LEVEL = ClassSettings("BPE", ("add_prefix_space",), _apply_byte_level)
_WORDS = ClassSettings("Unigram", ("add_prefix_space",), _apply_words)
CLASSES: Mapping[str, ClassSettings] = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"), _BERT),
    **dict.fromkeys(("LayoutLMTokenizer", "SqueezeBertTokenizer", "LxmertTokenizer", "MPNetTokenizer"), _BERT),
    **dict.fromkeys(("DPRContextEncoderTokenizer", "DPRQuestionEncoderTokenizer"), _BERT),
    "RoFormerTokenizer": ClassSettings("WordPiece", _BERT_KEYS, use_jieba),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer"), _BYTE_LEVEL),
    **dict.fromkeys(("DebertaTokenizer", "GPT2Tokenizer"), _BYTE_LEVEL),
    "Qwen2Tokenizer": ClassSettings("BPE", ("add_prefix_space",), split_as_qwen),
    "Qwen3_5Tokenizer": ClassSettings("BPE", ("add_prefix_space",), _apply_qwen3_5),
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), _WORDS),
    "T5Tokenizer": ClassSettings("Unigram", (), _apply_t5),
    "AlbertTokenizer": ClassSettings("Unigram", ("do_lower_case", "keep_accents", "add_prefix_space"), _apply_albert),
    "DebertaV2Tokenizer": ClassSettings(
        "Unigram", ("do_lower_case", "split_by_punct", "add_prefix_space"), _apply_deberta_v2
    ),
    "LlamaTokenizer": ClassSettings("BPE", ("add_prefix_space", "legacy"), _apply_llama),
    "GemmaTokenizer": ClassSettings("BPE", (), _apply_gemma),
}
