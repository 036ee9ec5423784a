"""BERTweet and PhoBERT: byte-pair encoding of words, with merges in bpe.codes and "@@" after all but the last part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tokenizers import NormalizedString, PreTokenizedString, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel

from cenote.errors import LoadError
from cenote.loading.checkpoint import check_not_empty
from cenote.loading.legacy_tokenizers.source import SpecialTokens, TokenizerSource, wrap_tokenizer_errors
from cenote.loading.legacy_tokenizers.tweets import AlignedText, load_tweet_normalizer

FIRST_TOKENS = ("cls_token", "pad_token", "sep_token", "unk_token")  # ids 0 to 3, not in vocab.txt
WORDS = Regex(r"\S+\n?")  # a line break right after a word belongs to it
END_OF_WORD = "</w>"
CONTINUES = "@@"
FIRST_CHARACTER, OTHER_CHARACTERS = Regex(r"\A[\s\S]"), Regex(r"(?<=\A[\s\S])[\s\S]+")


NormalizeText: TypeAlias = Callable[[str], AlignedText]


def build_phobert(source: TokenizerSource, path: Path) -> Tokenizer:
    return _build(source, path, AlignedText.unchanged)


def build_bertweet(source: TokenizerSource, path: Path) -> Tokenizer:
    normalizes = source.settings.get("normalization", False)
    return _build(source, path, load_tweet_normalizer(path) if normalizes else AlignedText.unchanged)


def _build(source: TokenizerSource, path: Path, normalize: NormalizeText) -> Tokenizer:
    names, codes = source.special_tokens, source.require_vocabulary("bpe.codes")
    tokenizer = Tokenizer(WordLevel(_read_vocabulary(path, names), unk_token=names["unk_token"]))
    with wrap_tokenizer_errors(codes):
        splitter = SubwordSplitter(_read_merges(codes), normalize)
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(splitter)
    tokenizer.decoder = decoders.Sequence(
        # no token starts with a space, so that one is put between all of them
        [decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse(), decoders.Replace(f"{CONTINUES} ", "")]
    )
    return tokenizer


def _read_vocabulary(path: Path, names: SpecialTokens) -> dict[str, int]:
    """Return the tokens of vocab.txt, lines of a token and its count, after the four that are not in it."""
    check_not_empty(path)
    vocab = {names[name]: row for row, name in enumerate(FIRST_TOKENS)}
    for line in path.read_text(encoding="utf-8").splitlines():
        token, space, _ = line.strip().rpartition(" ")
        if not space:
            raise LoadError(f"{path}: {line!r} is not a token and its count; download it again")
        vocab[token] = len(vocab)
    return vocab


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of bpe.codes, lines of two parts and their count."""
    check_not_empty(path)
    lines = [line.split() for line in path.read_text(encoding="utf-8").split("\n")]
    return list(dict.fromkeys((line[0], line[1]) for line in lines if len(line) == 3))


class SubwordSplitter:
    """Pre-tokenizer that splits words into the tokens of the vocabulary.

    Merges may pass through parts that are not in the vocabulary, so they have ids of their own here, and the
    tokenizer looks up the results.
    """

    def __init__(self, merges: list[tuple[str, str]], normalize: NormalizeText) -> None:
        parts = dict.fromkeys(part for left, right in merges for part in (left, right, left + right))
        vocab = {part: row for row, part in enumerate(["<unk>", *parts])}
        self._subwords = Tokenizer(BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix=END_OF_WORD))
        self._subwords.pre_tokenizer = pre_tokenizers.Split(WORDS, behavior="removed", invert=True)
        self._normalize = normalize

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(self._split)

    def _split(self, _index: int, text: NormalizedString) -> list[NormalizedString]:
        normalized = self._normalize(text.normalized)
        encoding = self._subwords.encode(normalized.text, add_special_tokens=False)
        words: list[int | None] = [*encoding.word_ids, None]
        tokens: list[NormalizedString] = []
        for row, (start, end) in enumerate(encoding.offsets):
            token = text[slice(*normalized.span(start, end))]
            assert token is not None, "a token has at least one character"
            _replace(token, normalized.text[start:end] + ("" if words[row] != words[row + 1] else CONTINUES))
            tokens.append(token)
        return tokens


def _replace(token: NormalizedString, text: str) -> None:
    """Set the text of a token, so that it still spans the characters it was made of."""
    if token.normalized == text:
        return
    if len(token.normalized) > 1:
        token.replace(OTHER_CHARACTERS, text[1:])
        text = text[:1]
    token.replace(FIRST_CHARACTER, text)
