"""RoFormerTokenizer: words of Jieba that the vocabulary has, single Chinese characters otherwise; then WordPiece."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from tokenizers import NormalizedString, PreTokenizedString, Regex, Tokenizer, normalizers, pre_tokenizers

from cenote.errors import LoadError
from cenote.loading.legacy_tokenizers.source import TokenizerSource
from cenote.loading.legacy_tokenizers.wordpiece import bert_normalizer, build_wordpiece
from cenote.utils.install_commands import install_command

FindWords: TypeAlias = Callable[[str], Iterable[tuple[str, int, int]]]  # word, start, end

# Jieba finds runs of letters and digits, and all other characters one by one; these are its only other ASCII words
ASCII_WORDS = r"AT&T|[cC]#|[cC]\+\+"
WORDS_WITHOUT_CHINESE = Regex(rf"{ASCII_WORDS}|(?:(?!{ASCII_WORDS})[a-zA-Z0-9])+|\S")
CHINESE_WORD = re.compile(r"(?!##)(.*[\u3400-\u9fff].+|.+[\u3400-\u9fff].*)")
SPACED_CHARACTERS = normalizers.BertNormalizer(
    clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
)


def build_roformer(source: TokenizerSource, path: Path) -> Tokenizer:
    tokenizer = build_wordpiece(source, path)
    use_jieba(tokenizer, source.settings)
    return tokenizer


def use_jieba(tokenizer: Tokenizer, settings: Mapping[str, object]) -> None:
    """Set the normalizer and the pre-tokenizer of RoFormer, which no tokenizer.json can hold."""
    vocabulary = tokenizer.get_vocab()
    # spaces around Chinese characters would separate the words
    tokenizer.normalizer = bert_normalizer({**settings, "tokenize_chinese_chars": False})
    try:
        find_words: FindWords = import_module("rjieba").tokenize
    except ModuleNotFoundError:
        if (word := next(filter(CHINESE_WORD.fullmatch, vocabulary), None)) is not None:
            raise LoadError(
                f"RoFormerTokenizer with Chinese words in its vocabulary ({word!r}) requires the package rjieba: "
                f"{install_command('chinese')}"
            ) from None
        tokenizer.pre_tokenizer = pre_tokenizers.Split(WORDS_WITHOUT_CHINESE, behavior="removed", invert=True)
        return
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(JiebaSplitter(find_words, vocabulary))


class JiebaSplitter:
    """Pre-tokenizer that splits a text into words of Jieba; those outside the vocabulary into their characters."""

    def __init__(self, find_words: FindWords, vocabulary: Container[str]) -> None:
        self._find_words = find_words
        self._vocabulary = vocabulary

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(self._split)

    def _split(self, _index: int, text: NormalizedString) -> list[NormalizedString]:
        parts: list[NormalizedString | None] = []
        for word, start, _ in self._find_words(text.normalized, hmm=False):  # type: ignore[call-arg]
            pieces = [word] if word in self._vocabulary else SPACED_CHARACTERS.normalize_str(word).split()
            for piece in pieces:
                parts.append(text[start : start + len(piece)])
                start += len(piece)
        return [part for part in parts if part is not None]
