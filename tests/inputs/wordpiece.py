"""WordPiece tokenizers, texts that are hard for them, and the encodings of the library."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"

PIECES = (
    "[UNK] [CLS] [SEP] [MASK] the The cafe café caf ##e ##é ##ing un ##believ ##able abcdefghijkl ##mnopqrstuvwxyz "
    "中 ##中 日 が か ㄱ ᄀ ##ᅡ 👍 ß ss ##ς ##σ i ! , . ' - [ ] ## # « ё е ##Й A B É ##B 0 ##0 ##00"
)

WORDS = PIECES.split(" ")

VOCABULARY = {token: row for row, token in enumerate(dict.fromkeys([*WORDS, *LETTERS, *(f"##{x}" for x in LETTERS)]))}

# white space, control characters, letters that change length in lower case, combining marks, scripts, unassigned
UNICODE = (
    "\t\n\r\v\f\x1c\x7f\x85\xa0\xad\u1680\u180e\u2000\u200b\u200d\u2028\u2029\u202f\u2060\u3000\ufeff\ufffc\ufffd"
    "ÀÉÎõüñçßẞøŁıİŉǅȺΣσςΆЁёЙйѝԱ\u0300\u0301\u0302\u0307\u0308\u0323\u0327\u0345\u064b\u0670\u05b0\u093c\u094d"
    "\u1b44\ua953\u302e\u20dd\U0001d165\U0001d15e\u0ddd\u0bcaᾭΐǖ"
    "中文𠀀豈丽がガﾊﾟ한국각\u1100\u1161\u11a8ไทยहिन्दीعربيעברית«»„“’…—–・、。！？€£¥©®™²½№①Ⅷﬁ"
    "👍👩🏽🇩🇪❤\ufe0f\ue000\U000e0001\U0010ffff\u0378\x00"
)


def make_tokenizer(
    vocabulary: dict[str, int] = VOCABULARY, *, added: Sequence[AddedToken] = (), model: Any = None, **options: Any
) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(WordPiece(vocabulary, **({"unk_token": "[UNK]"} | (model or {}))))
    raw.normalizer = BertNormalizer(**options)
    raw.pre_tokenizer = BertPreTokenizer()
    raw.add_special_tokens([token for token in ("[CLS]", "[SEP]", "[MASK]") if token in vocabulary])
    raw.add_tokens(list(added))
    return raw


def make_texts(seed: int, count: int) -> list[str]:
    """Return random texts of vocabulary words, ASCII, letters and marks of many scripts."""
    rng = random.Random(seed)
    generators = (
        lambda: rng.choice(WORDS).replace("##", ""),
        lambda: rng.choice((" ", " ", "  ", "\n", "", "")),
        lambda: chr(rng.randrange(128)),
        lambda: rng.choice(UNICODE),
        lambda: rng.choice(LETTERS) * rng.choice((1, 2, 3, 3, 99, 100, 101)),
    )
    mixtures = [(6, 6, 0, 0, 1), (6, 6, 1, 1, 0), (0, 1, 9, 0, 0), (1, 1, 0, 9, 0)]
    return [
        "".join(generate() for generate in rng.choices(generators, rng.choice(mixtures), k=rng.randrange(25)))
        for _ in range(count)
    ]


def encode_with_library(raw: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in raw.encode_batch(texts, add_special_tokens=False)]
