"""Normalisation of tweets as BERTweet was trained with it: words, user names, URLs, emoji and contractions."""

from __future__ import annotations

import html.entities
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from cenote.errors import LoadError
from cenote.utils.install_commands import install_command

PUNCTUATION = {"’": "'", "…": "..."}
# replacements in the joined words, in this order
CONTRACTIONS = (
    ("cannot ", "can not "),
    ("n't ", " n't "),
    ("n 't ", " n't "),
    ("ca n't", "can't"),
    ("ai n't", "ain't"),
    *((f"{ending} ", f" {ending} ") for ending in ("'m", "'re", "'s", "'ll", "'d", "'ve")),
    (" p . m .", "  p.m."),
    (" p . m ", " p.m "),
    (" a . m .", " a.m."),
    (" a . m ", " a.m "),
)
ENTITY = re.compile(r"&(#?(x?))([^&;\s]+);")
RUN = re.compile(r"([^a-zA-Z0-9])\1{3,}")  # cut to three characters

# the kinds of words, the first that matches wins; lengths are bounded, so that no text takes quadratic time
_EYES, _NOSE, _MOUTH = r"[:;=8]", r"[\-o*']?", r"[)\](\[dDpP/:}{@|\\]"
_NESTED, _IN_PARENTHESES = r"\([^\s()]{0,255}?\([^\s()]{1,255}\)[^\s()]{0,255}?\)", r"\(\S{1,255}?\)"
_TOP_LEVEL, _GAP, _LETTER = r"[a-z]{2,13}", r"[ *\-.)]*", r"[^\W\d_]"
WORD_KINDS = {
    "url": rf"(?:https?:(?:/{{1,3}}|[a-z0-9%])|[a-z0-9.\-]{{1,255}}[.]{_TOP_LEVEL}/)"
    rf"(?:[^\s()<>{{}}\[\]]+|{_NESTED}|{_IN_PARENTHESES})+"
    rf"(?:{_NESTED}|{_IN_PARENTHESES}|[^\s`!()\[\]{{}};:'\".,<>?«»“”‘’])",
    "domain": rf"(?<!@)[a-z0-9]+(?:[.\-][a-z0-9]+){{0,126}}[.]{_TOP_LEVEL}\b/?(?!@)",
    "phone number": rf"(?:\+?[01]{_GAP})?(?:\(?\d{{3}}{_GAP})?\d{{3}}{_GAP}\d{{4}}",
    "emoticon": rf"[<>]?{_EYES}{_NOSE}{_MOUTH}|{_MOUTH}{_NOSE}{_EYES}[<>]?|<3",
    "tag": r"<[^>\s]{1,255}>",
    "arrow": r"-+>|<-+",
    "user": r"@\w+",
    "hashtag": r"\#+\w+[\w'\-]*\w+",
    "e-mail": r"[\w.+-]{1,255}@[\w-]{1,255}\.(?:[\w-]\.?){1,255}[\w-]",
    "word": rf"{_LETTER}(?:{_LETTER}|['\-_])+{_LETTER}",
    "number": r"[+\-]?\d+[,/.:-]\d+[+\-]?",
    "word of letters and digits": r"\w+",
    "ellipsis": r"\.(?:\s*\.)+",
    "other": r"\S",
}
WORD_PATTERN = "|".join(f"(?:{pattern})" for pattern in WORD_KINDS.values())


@dataclass(frozen=True, slots=True)
class AlignedText:
    """A changed text, with the characters `starts[i]:ends[i]` of the original that character i comes from."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def unchanged(cls, text: str) -> AlignedText:
        return cls(text, range(len(text)), range(1, len(text) + 1))

    def span(self, start: int, end: int) -> tuple[int, int]:
        return self.starts[start], self.ends[end - 1]

    def replace(self, spans: Sequence[tuple[int, int, str]]) -> AlignedText:
        """Replace the characters of every span; spans are in order and do not overlap."""
        parts: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        done = 0
        for start, end, text in [*spans, (len(self.text), len(self.text), "")]:
            parts += [self.text[done:start], text]
            starts += self.starts[done:start]
            ends += self.ends[done:start]
            if text:
                first, last = self.span(start, end) if end > start else (self.starts[start], self.starts[start])
                starts += [first] * len(text)
                ends += [last] * len(text)
            done = end
        return AlignedText("".join(parts), starts, ends)

    def replace_text(self, old: str, new: str) -> AlignedText:
        found = [match.span() for match in re.finditer(re.escape(old), self.text)]
        if new.endswith(old):  # an insertion: the old characters keep their places
            return self.replace([(start, start, new.removesuffix(old)) for start, _ in found]) if found else self
        return self.replace([(start, end, new) for start, end in found]) if found else self


def load_tweet_normalizer(path: Path) -> Callable[[str], AlignedText]:
    """Return the normalisation, which requires the packages emoji (names of emoji) and regex (Unicode words)."""
    try:
        demojize, regex = import_module("emoji").demojize, import_module("regex")
    except ModuleNotFoundError as error:
        raise LoadError(
            f"{path}: BertweetTokenizer with normalization requires the packages emoji and regex: "
            f"{install_command('tweets')}"
        ) from error
    return partial(_normalize_tweet, word=regex.compile(WORD_PATTERN, regex.IGNORECASE), demojize=demojize)


def _normalize_tweet(text: str, word: re.Pattern[str], demojize: Callable[[str], Any]) -> AlignedText:
    tweet = AlignedText.unchanged(text)
    for old, new in PUNCTUATION.items():
        tweet = tweet.replace_text(old, new)
    tweet = tweet.replace([(*match.span(), _entity_text(match)) for match in ENTITY.finditer(tweet.text)])
    tweet = tweet.replace([(*match.span(), match[1] * 3) for match in RUN.finditer(tweet.text)])
    tweet = _keep_words(tweet, word, demojize)
    for old, new in CONTRACTIONS:
        tweet = tweet.replace_text(old, new)
    return tweet


def _keep_words(tweet: AlignedText, word: re.Pattern[str], demojize: Callable[[str], Any]) -> AlignedText:
    """Normalize every word and put one space between words."""
    spans: list[tuple[int, int, str]] = []
    done = 0
    for match in word.finditer(tweet.text):
        start, end = match.span()
        spans += [(done, start, " " if spans else ""), (start, end, _normalize_word(match[0], demojize))]
        done = end
    return tweet.replace([*spans, (done, len(tweet.text), "")])


def _normalize_word(word: str, demojize: Callable[[str], Any]) -> str:
    if word.startswith("@"):
        return "@USER"
    if word.lower().startswith(("http", "www")):
        return "HTTPURL"
    return str(demojize(word)) if len(word) == 1 else word


def _entity_text(match: re.Match[str]) -> str:
    """Return the character of an HTML entity; nothing for an unknown one."""
    number_sign, hexadecimal, body = match.groups()
    if not number_sign:
        code = html.entities.name2codepoint.get(body)
        return "" if code is None else chr(code)
    try:
        code = int(body, 16 if hexadecimal else 10)
        # browsers read 0x80 to 0x9F as Windows-1252
        return bytes((code,)).decode("cp1252") if 0x80 <= code <= 0x9F else chr(code)
    except (ValueError, OverflowError):
        return ""
