"""Add the tokens that stand only in the settings next to tokenizer.json, in the order of Transformers 5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.legacy_tokenizers.source import BERT_NAMES, ROBERTA_NAMES, TokenizerSettings

# in the order in which tokens without an id are added
TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA_TOKENS = ("extra_special_tokens", "additional_special_tokens")
ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# special tokens of a class for the names that the files leave out
_BERT_EDGES = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
_ROBERTA_EDGES = {"bos_token": "<s>", "eos_token": "</s>"}
_GPT2_TOKENS = {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
DEFAULT_TOKENS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"), BERT_NAMES),
    "RoFormerTokenizer": BERT_NAMES,
    **dict.fromkeys(("DebertaTokenizer", "DebertaV2Tokenizer"), BERT_NAMES | _BERT_EDGES),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"), ROBERTA_NAMES | _ROBERTA_EDGES),
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), ROBERTA_NAMES | _ROBERTA_EDGES),
    "MPNetTokenizer": ROBERTA_NAMES | _ROBERTA_EDGES | {"unk_token": "[UNK]"},
    "AlbertTokenizer": BERT_NAMES | _BERT_EDGES | {"unk_token": "<unk>", "pad_token": "<pad>"},
    "T5Tokenizer": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "LlamaTokenizer": {"unk_token": "<unk>", **_ROBERTA_EDGES},
    "GemmaTokenizer": {"bos_token": "<bos>", "eos_token": "<eos>"}
    | {name: ROBERTA_NAMES[name] for name in ("unk_token", "pad_token", "mask_token")},
    **dict.fromkeys(("Qwen2Tokenizer", "Qwen3_5Tokenizer"), _GPT2_TOKENS | {"pad_token": "<|endoftext|>"}),
    "GPT2Tokenizer": _GPT2_TOKENS | {"bos_token": "<|endoftext|>"},
}


def read_special_tokens(checkpoint: Checkpoint, settings: TokenizerSettings) -> dict[str, Any]:
    """Return the settings of special tokens of both files.

    special_tokens_map.json takes precedence, except over tokenizer_config.json with added_tokens_decoder, which is
    newer: there it fills gaps only.
    """
    older = checkpoint.read_json_object("special_tokens_map.json")
    if "added_tokens_decoder" in settings:
        return {**older, **settings}
    extra = read_extra_tokens(settings)
    extra += [token for token in older.get("extra_special_tokens") or () if token not in extra]
    return {**settings, **older, **({"extra_special_tokens": extra} if extra else {})}


def add_listed_tokens(tokenizer: Tokenizer, checkpoint: Checkpoint, settings: TokenizerSettings) -> None:
    """Add the tokens that files list with ids, checking that they get these ids."""
    known = _read_known(tokenizer)
    for row, token in sorted(_read_listed(checkpoint, settings).items()):
        if token.content not in known:
            tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != row:
            raise LoadError(
                f"{checkpoint.folder}/tokenizer_config.json gives {token.content!r} the id {row}, the vocabulary has "
                f"{tokenizer.token_to_id(token.content)} tokens before it; save the tokenizer with a tokenizer.json"
            )


def add_unlisted_tokens(
    tokenizer: Tokenizer, checkpoint: Checkpoint, settings: TokenizerSettings, class_name: str | None
) -> None:
    """Add the special tokens of the files and of the class, so that they are never split."""
    # a default outside the vocabulary takes an id, too, so that those after it have theirs
    special = {**DEFAULT_TOKENS.get(class_name or "", {}), **_read_special(checkpoint, settings)}
    known = _read_known(tokenizer)
    tokens = [_make_token(token) for token in _list_special_tokens(special)]
    tokenizer.add_tokens([token for token in tokens if token.content not in known])


def read_extra_tokens(settings: Mapping[str, Any]) -> list[Any]:
    """Return the special tokens without a role: a list, or a mapping of names to tokens."""
    extra = next((settings[name] for name in EXTRA_TOKENS if settings.get(name)), ())
    return list(extra.values() if isinstance(extra, Mapping) else extra)


def read_token_texts(tokens: Iterable[Any]) -> list[str]:
    texts = [token.get("content") if isinstance(token, Mapping) else token for token in tokens]
    return [text for text in texts if isinstance(text, str)]


def _read_special(checkpoint: Checkpoint, settings: TokenizerSettings) -> Mapping[str, Any]:
    return settings if "added_tokens_decoder" in settings else read_special_tokens(checkpoint, settings)


def _read_listed(checkpoint: Checkpoint, settings: TokenizerSettings) -> dict[int, AddedToken]:
    """Return the tokens with ids: those of added_tokens_decoder, else those of the older added_tokens.json."""
    if "added_tokens_decoder" in settings:
        listed = settings["added_tokens_decoder"] or {}
        return {int(row): _make_token(token, is_special=False) for row, token in listed.items()}
    special = read_token_texts(_list_special_tokens(_read_special(checkpoint, settings)))
    return {
        row: AddedToken(text, normalized=text not in special, special=text in special)
        for text, row in checkpoint.read_json_object("added_tokens.json").items()
    }


def _list_special_tokens(settings: Mapping[str, Any]) -> list[Any]:
    """Return the tokens with a role, those with a role of their own (image_token), and those without."""
    others = [
        token
        for name, token in settings.items()
        if name.endswith("_token") and name not in TOKEN_NAMES and isinstance(token, str)
    ]
    tokens = [*(settings.get(name) for name in TOKEN_NAMES), *others, *read_extra_tokens(settings)]
    return [token for token in tokens if isinstance(token, str | Mapping) and token]


def _make_token(token: Any, *, is_special: bool = True) -> AddedToken:
    if not isinstance(token, Mapping):
        return AddedToken(str(token), special=is_special)
    flags = {name: token[name] for name in ADDED_TOKEN_FLAGS if name in token}
    return AddedToken(token["content"], **{**flags, "special": True} if is_special else flags)


def _read_known(tokenizer: Tokenizer) -> set[str]:
    return {token.content for token in tokenizer.get_added_tokens_decoder().values()}
