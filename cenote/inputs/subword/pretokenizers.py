"""Pre-tokenizers that the native encoder knows: how they split texts into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cenote.inputs.subword.components import META_SPACE, UnknownTokenizer, flatten_steps

# regular expressions, numbered as in split.h
NEWER_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": 0,
    NEWER_PATTERN.replace("NUMBERS", r"\p{N}"): 1,
    NEWER_PATTERN.replace("NUMBERS", r"\p{N}{1,3}"): 2,
}
GPT2_PATTERN = next(iter(PATTERNS))
# as in normalize.h
KEEP_PREFIX, ADD_PREFIX, ADD_FIRST_PREFIX, ALWAYS_ADD_PREFIX = range(4)
PREFIX_SCHEMES = {"never": KEEP_PREFIX, "always": ADD_PREFIX, "first": ADD_FIRST_PREFIX}


@dataclass(frozen=True, slots=True)
class ByteLevelSplit:
    pattern: int
    adds_prefix_space: bool


@dataclass(frozen=True, slots=True)
class MetaspaceSplit:
    """Spaces become U+2581."""

    prefix: int = KEEP_PREFIX
    splits: bool = False  # before every U+2581
    splits_spaces: bool = False  # at all white space, before the prefix is added to each word
    needs_meta_spaces: bool = False  # the normalizer must have replaced all spaces


def parse_pre_tokenizer(state: Mapping[str, Any] | None) -> ByteLevelSplit | MetaspaceSplit:
    """Read the state of a pre-tokenizer; raise UnknownTokenizer."""
    steps = flatten_steps(state, "pretokenizers")
    match [step["type"] for step in steps]:
        case ["ByteLevel"] if steps[0].get("use_regex", True):
            return ByteLevelSplit(PATTERNS[GPT2_PATTERN], steps[0]["add_prefix_space"])
        case ["Split", "ByteLevel"] if not steps[1].get("use_regex", True) and not steps[1]["add_prefix_space"]:
            pattern = PATTERNS.get(steps[0]["pattern"].get("Regex"))
            if pattern is None or steps[0]["behavior"] != "Isolated" or steps[0]["invert"]:
                raise UnknownTokenizer(f"pre-tokenizer Split with {steps[0]['pattern']}")
            return ByteLevelSplit(pattern, False)
        case ["Metaspace"] | ["WhitespaceSplit", "Metaspace"] if steps[-1]["replacement"] == META_SPACE:
            prefix, splits = PREFIX_SCHEMES[steps[-1]["prepend_scheme"]], steps[-1]["split"]
            if len(steps) == 1:
                return MetaspaceSplit(prefix, splits)
            if prefix == ADD_PREFIX and splits:
                return MetaspaceSplit(prefix, splits, splits_spaces=True)
        case []:
            return MetaspaceSplit(needs_meta_spaces=True)
        case ["Split"] if steps[0]["pattern"] == {"String": " "} and not steps[0]["invert"]:
            return MetaspaceSplit(needs_meta_spaces=True)
    raise UnknownTokenizer(f"pre-tokenizer {' + '.join(step['type'] for step in steps)}")
