"""BertJapaneseTokenizer: words of MeCab, then WordPiece or characters."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import NormalizedString, PreTokenizedString, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel, WordPiece

from cenote.errors import LoadError
from cenote.loading.legacy_tokenizers.source import TokenizerSource
from cenote.loading.legacy_tokenizers.wordpiece import read_vocabulary
from cenote.utils.install_commands import install_command

logger = logging.getLogger("cenote")

DICTIONARIES = ("ipadic", "unidic_lite", "unidic")
# Transformers' default until September 2024, so that of checkpoints that name no dictionary
DEFAULT_DICTIONARY = "ipadic"
# what a word of MeCab is split into before the vocabulary is applied
PARTS = {"wordpiece": re.compile(r"\S+"), "character": re.compile(r"(?s)."), None: re.compile(r"(?s).+")}
INSTALL_HINTS = {"unidic": "pip install fugashi unidic && python -m unidic download"}


def build_bert_japanese(source: TokenizerSource, path: Path) -> Tokenizer:
    settings = source.settings
    subwords = (
        settings.get("subword_tokenizer_type", "wordpiece") if settings.get("do_subword_tokenize", True) else None
    )
    if subwords not in ("wordpiece", "character", None):
        raise source.refuse(f"subword_tokenizer_type {subwords!r}")
    model = WordPiece if subwords == "wordpiece" else WordLevel
    tokenizer = Tokenizer(model(read_vocabulary(source, path), unk_token=source.special_tokens["unk_token"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = _split_words(source, path, subwords)
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _split_words(source: TokenizerSource, path: Path, subwords: str | None) -> tuple[Any, Any]:
    """Return the normalizer and the pre-tokenizer."""
    settings = source.settings
    lower_case = bool(settings.get("do_lower_case", False))
    lower = [normalizers.Lowercase()] if lower_case else []
    kind = settings.get("word_tokenizer_type", "basic") if settings.get("do_word_tokenize", True) else None
    if kind == "basic" and subwords == "wordpiece":
        basic = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=False, strip_accents=None, lowercase=lower_case
        )
        return basic, pre_tokenizers.BertPreTokenizer()
    if kind != "mecab":
        raise source.refuse(f"word_tokenizer_type {kind!r}")
    options = dict(settings.get("mecab_kwargs") or {})
    normalizes = options.pop("normalize_text", True)
    if subwords == "character" and not normalizes:
        raise source.refuse("characters and mecab_kwargs normalize_text false")
    composed = [normalizers.NFKC()] if normalizes else []
    tagger = _load_mecab(source, options, path)
    splitter = MecabSplitter(tagger, PARTS[subwords], lower_case=lower_case)
    return normalizers.Sequence([*lower, *composed]), pre_tokenizers.PreTokenizer.custom(splitter)


def _load_mecab(source: TokenizerSource, options: dict[str, Any], path: Path) -> Any:
    dictionary = options.pop("mecab_dic", "")
    if dictionary == "":
        dictionary = DEFAULT_DICTIONARY
        logger.warning(
            "%s names no MeCab dictionary: using %s, the default when such models were published; "
            'to use another, set "mecab_kwargs": {"mecab_dic": "unidic_lite"} there',
            path.with_name("tokenizer_config.json"),
            dictionary,
        )
    # mecab_option could name any file of this machine
    unsupported = {name: value for name, value in options.items() if value}
    if dictionary not in DICTIONARIES or unsupported:
        raise source.refuse(f"mecab_kwargs {dict(source.settings['mecab_kwargs'])!r}")
    try:
        fugashi, package = import_module("fugashi"), import_module(dictionary)
    except ModuleNotFoundError as error:
        hint = INSTALL_HINTS.get(dictionary) or install_command("japanese")
        raise LoadError(
            f"{path}: {source.class_name} with MeCab requires the packages fugashi and {dictionary}: {hint}"
        ) from error
    folder = Path(package.DICDIR)
    if not folder.is_dir():
        raise LoadError(f"{path}: the MeCab dictionary {folder} is missing: {INSTALL_HINTS[dictionary]}")
    return fugashi.GenericTagger(f'-d "{folder}" -r "{folder / "mecabrc"}" ')


class MecabSplitter:
    """Pre-tokenizer that splits a text into the words of MeCab, and those into the matches of a pattern."""

    def __init__(self, tagger: Any, parts: re.Pattern[str], *, lower_case: bool) -> None:
        self._tagger = tagger
        self._parts = parts
        self._lower_case = lower_case

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(self._split)

    def _split(self, _index: int, text: NormalizedString) -> list[NormalizedString]:
        parts = [text[start:end] for start, end in self._find_parts(text.normalized)]
        words = [part for part in parts if part is not None]
        if self._lower_case:  # Unicode normalisation can produce upper case
            for word in words:
                word.lowercase()
        return words

    def _find_parts(self, text: str) -> Iterator[tuple[int, int]]:
        end = 0
        for node in self._tagger(text):
            start = text.index(node.surface, end)
            end = start + len(node.surface)
            yield from (part.span() for part in self._parts.finditer(text, start, end))
