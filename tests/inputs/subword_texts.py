"""Random texts for tests of native tokenizers."""

from __future__ import annotations

import random
from collections.abc import Sequence

WORDS = str.split(
    "the quick don't I'LL we'Ve it'\u017f it's 'Re naïve café e\u0301 Straße Москва привет مرحبا العَرَبِيَّة 你好世界 "
    "日本語です 한국어 ภาษาไทย น้ำ हिन्दी ৰাম தமிழ் 1234567 3.14 ½ ² Ⅷ foo_bar x+=1; <html> \u2581 \u2581a ... --- ¨ ﷺ "
    "㍿ ﬁ ﬆ 'S"
)
SPACES = (" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "   ", "\u3000", "\xa0", "\u2028", "\x85")
MARKS = (
    "\u0300\u0301\u0308\u0323\u0327\u0345\u064b\u0651\u05b0\u093c\u094d\u09be\u0b3e\u0e33\u0e38\u0e48\u1161\u11a8\u200b\u200c"
    "\u200d\u200e\ufe0f\u20e3\u3099\U0001f3fb\uff9e"
)
BASES = "aeiouAnقاوनक日x1²\r\n ㄱᄀ가👍🇩"
# ASCII more often than controls, scripts, marks, symbols, compatibility forms, and the planes 1, 2, 3, 14 and 16
BLOCKS = [(0x20, 0x7F)] * 6 + [
    *((0, 0x20), (0x80, 0x250), (0x250, 0x300), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x700, 0x900)),
    *((0x900, 0xE00), (0xE00, 0xF00), (0xF00, 0x1200), (0x1200, 0x2000), (0x2000, 0x2070), (0x2070, 0x2C00)),
    *((0x2C00, 0x3400), (0x4E00, 0x5000), (0xA000, 0xAD00), (0xD7B0, 0xD800), (0xE000, 0xE010), (0xF900, 0x10000)),
    *((0x10000, 0x20000), (0x1F1E6, 0x1FA00), (0x20000, 0x20100), (0x31350, 0x31360), (0xE0000, 0xE01F0)),
    (0x10FFF0, 0x110000),
]
CONTRACTED = "sStTmMdDlLrRvV\u017f"
# how often each kind of part occurs: words, spaces, characters, marks, runs, ASCII, added tokens, bases, apostrophes
MIXTURES = (
    (6, 6, 0, 0, 0, 0, 0, 0, 0),
    (5, 5, 2, 1, 1, 1, 1, 1, 1),
    (0, 0, 9, 2, 0, 0, 0, 0, 0),
    (1, 3, 0, 0, 1, 9, 0, 0, 1),
    (0, 1, 0, 6, 0, 0, 0, 6, 0),
    (2, 2, 0, 0, 0, 0, 5, 2, 0),
    (3, 3, 1, 0, 1, 0, 0, 0, 4),
)


def make_texts(seed: int, count: int, added_tokens: Sequence[str] = ("",)) -> list[str]:
    rng = random.Random(seed)
    pieces = [*added_tokens, *(f" {token}" for token in added_tokens), *(token[:-1] for token in added_tokens)]
    generators = (
        lambda: rng.choice(WORDS),
        lambda: rng.choice(SPACES),
        lambda: chr(rng.randrange(*rng.choice(BLOCKS))),
        lambda: rng.choice(MARKS),
        lambda: rng.choice("abcxyzé1 .,'-\n") * rng.choice((1, 2, 3, 5, 30, 49, 60, 300)),
        lambda: chr(rng.randrange(128)),
        lambda: rng.choice(pieces),
        lambda: rng.choice(BASES),
        lambda: "'" + rng.choice(CONTRACTED) + rng.choice("eElLx "),
    )
    return [
        "".join(generate() for generate in rng.choices(generators, rng.choice(MIXTURES), k=rng.randrange(30)))
        for _ in range(count)
    ]
