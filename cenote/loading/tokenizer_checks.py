"""Check that a tokenizer belongs to its model: special tokens and vocabulary size against config.json."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import tokenizers

from cenote.errors import LoadError
from cenote.loading.legacy_tokenizers.source import WAY_OUT
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.models.architecture import HFConfig

logger = logging.getLogger("cenote")

FIRST_KEYS, LAST_KEYS = ("cls_token_id", "bos_token_id"), ("sep_token_id", "eos_token_id")
# bos and eos of RoBERTa: defaults of many config classes (ConvBERT, YOSO, Nystromformer), whatever the vocabulary
DEFAULT_IDS = (0, 2)
MAX_EXCESS = 0.05  # part of the embedding table; some vocabularies have unused tokens after it (mT5)


def check_tokenizer(files: TokenizerFiles, config: HFConfig, vocab_size: int, folder: Path) -> None:
    """Raise LoadError for a tokenizer of another model; warn if tokenizer.json and config.json disagree.

    pad_token_id and mask_token_id are not compared: no result depends on them, and many configs have stale ones.
    """
    if vocab_size < 1:  # of a model without a word embedding
        return
    _check_size(files.tokenizer, vocab_size, folder)
    ids = [int(row) for row in _special_ids(files.tokenizer)]
    outside = [row for row in ids if row >= vocab_size]
    if outside:
        raise LoadError(
            f"{folder}: the tokenizer adds {files.tokenizer.id_to_token(outside[0])!r} with id {outside[0]} to every "
            f"text, but the model has {vocab_size} tokens ({config.source}); set the tokenizer option to its tokenizer"
        )
    message = _find_contradiction(files.tokenizer, config, folder)
    if message is None:
        return
    if files.is_legacy:
        raise LoadError(f"{message}; {WAY_OUT}")
    logger.warning("%s; if results are wrong, set the tokenizer option", message)


def warn_of_token_types(files: TokenizerFiles, config: HFConfig, folder: Path) -> None:
    """Warn if pairs have no token types only because no file mentions them."""
    has_two_types = int(config.get("type_vocab_size", 0) or 0) > 1
    is_named = isinstance(files.tokenizer_config.get("model_input_names"), list)
    if files.has_token_types or is_named or not has_two_types:
        return
    if max(files.tokenizer.encode("a", "a").type_ids, default=0) > 0:
        logger.warning(
            "%s: token types of pairs are 0, as in Transformers 5 with this tokenizer_class; if the model was trained "
            "with token types, add token_type_ids to model_input_names",
            folder / "tokenizer_config.json",
        )


def _check_size(tokenizer: tokenizers.Tokenizer, vocab_size: int, folder: Path) -> None:
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    if size > (1 + MAX_EXCESS) * vocab_size:
        raise LoadError(
            f"{folder}: the tokenizer has {size} tokens, the model {vocab_size}: it is the tokenizer of another "
            "model; set the tokenizer option to the model's own"
        )


def _find_contradiction(tokenizer: tokenizers.Tokenizer, config: HFConfig, folder: Path) -> str | None:
    """Describe special tokens around a text if config.json names others for both ends."""
    before, after = _special_ids_around(tokenizer)
    first, last = _read_ids(config, FIRST_KEYS), _read_ids(config, LAST_KEYS)
    if not before or not after or not first or not last:
        return None
    if (
        before[0] in first
        or after[-1] in last
        or (config.get("bos_token_id"), config.get("eos_token_id")) == DEFAULT_IDS
    ):
        return None
    if set(first) == set(last):  # written by versions of Transformers that set every id to 0
        return None
    return (
        f"{folder}: the tokenizer puts {tokenizer.id_to_token(before[0])!r} (id {before[0]}) and "
        f"{tokenizer.id_to_token(after[-1])!r} (id {after[-1]}) around texts, config.json has {first[0]} and {last[0]}"
    )


def _special_ids_around(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    encoding = tokenizer.encode("a")
    texts = [row for row, sequence in enumerate(encoding.sequence_ids) if sequence is not None]
    if not texts:  # the vocabulary does not have the probe
        return [], []
    return encoding.ids[: texts[0]], encoding.ids[texts[-1] + 1 :]


def _special_ids(tokenizer: tokenizers.Tokenizer) -> Iterable[int]:
    encoding = tokenizer.encode("a", "a")
    return (row for row, sequence in zip(encoding.ids, encoding.sequence_ids, strict=True) if sequence is None)


def _read_ids(config: HFConfig, keys: tuple[str, ...]) -> list[int]:
    """Return the ids that config.json has under these keys; eos_token_id may be a list."""
    values = [config.get(key) for key in keys]
    ids = [row for value in values for row in (value if isinstance(value, list) else [value])]
    return [row for row in ids if isinstance(row, int) and not isinstance(row, bool)]
