"""TokenVocabulary: ids, tokens and special tokens of a tokenizer, and texts from ids, as in Transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from cenote.errors import BadRequest
from cenote.inputs.tokenizer import clean_up_spaces

EXTRA_TOKEN_NAMES = ("additional_special_tokens", "extra_special_tokens")  # the second since Transformers 5


def copy_tokenizer(raw: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return an independent copy; one with a pre-tokenizer in Python, which cannot be serialised, shares its model."""
    if type(raw.pre_tokenizer) is not tokenizers.pre_tokenizers.PreTokenizer:  # the type of those in Python
        return tokenizers.Tokenizer.from_str(raw.to_str())
    copy = tokenizers.Tokenizer(raw.model)
    copy.normalizer, copy.pre_tokenizer = raw.normalizer, raw.pre_tokenizer
    copy.post_processor, copy.decoder = raw.post_processor, raw.decoder
    added = [token for _, token in sorted(raw.get_added_tokens_decoder().items())]
    copy.add_tokens([token for token in added if not token.special])
    copy.add_special_tokens([token for token in added if token.special])
    return copy


class _SpecialToken:
    """A token such as `pad_token`, and with `_id` in its name the id of one; None if the tokenizer has none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.removesuffix("_id")
        self.is_id = name.endswith("_id")

    def __get__(self, tokenizer: TokenVocabulary | None, owner: type) -> Any:
        if tokenizer is None:
            return self
        token = tokenizer.special_tokens_map.get(self.name)
        return token if token is None or not self.is_id else tokenizer.convert_tokens_to_ids(token)

    def __set__(self, tokenizer: TokenVocabulary, value: Any) -> None:
        token = tokenizer.convert_ids_to_tokens(value) if self.is_id and value is not None else value
        tokenizer.special_tokens_map[self.name] = token


class TokenVocabulary:
    """The vocabulary of a copy of a tokenizer; attributes that Transformers does not have are those of the copy."""

    bos_token, bos_token_id = _SpecialToken(), _SpecialToken()
    eos_token, eos_token_id = _SpecialToken(), _SpecialToken()
    unk_token, unk_token_id = _SpecialToken(), _SpecialToken()
    sep_token, sep_token_id = _SpecialToken(), _SpecialToken()
    pad_token, pad_token_id = _SpecialToken(), _SpecialToken()
    cls_token, cls_token_id = _SpecialToken(), _SpecialToken()
    mask_token, mask_token_id = _SpecialToken(), _SpecialToken()

    def __init__(
        self,
        raw: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        additional_special_tokens: Sequence[str],
        *,
        clean_up: bool,
    ) -> None:
        self.backend_tokenizer = copy_tokenizer(raw)
        self.special_tokens_map = dict(special_tokens)
        self.additional_special_tokens = list(additional_special_tokens)
        self.clean_up_tokenization_spaces = clean_up

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "backend_tokenizer":  # not set yet, while it is being unpickled
            raise AttributeError(name)
        return getattr(self.backend_tokenizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the copy, such as `normalizer`, unless it is one of this object."""
        backend = self.__dict__.get("backend_tokenizer")
        if name not in self.__dict__ and not hasattr(type(self), name) and hasattr(backend, name):
            setattr(backend, name, value)
        else:
            super().__setattr__(name, value)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        """Number of tokens without those that were added."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=False)

    @property
    def max_token_id(self) -> int:
        return max(self.get_vocab().values(), default=0)

    @property
    def vocab(self) -> dict[str, int]:
        return self.get_vocab()

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens)
        return vocabulary

    def get_added_vocab(self) -> dict[str, int]:
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in sorted(added.items())}

    @property
    def all_special_tokens(self) -> list[str]:
        """Special tokens without repetitions."""
        return list(dict.fromkeys([*filter(None, self.special_tokens_map.values()), *self.additional_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        return [self.convert_tokens_to_ids(token) for token in self.all_special_tokens]

    def add_special_tokens(
        self, special_tokens_dict: Any = (), replace_extra_special_tokens: bool = True, *, tokens: Any = ()
    ) -> int:
        """Add and set special tokens by name, as `{"pad_token": "[PAD]"}`, or add a list; return how many are new.

        Further tokens are those of `additional_special_tokens`; they replace the earlier ones or, without
        `replace_extra_special_tokens`, follow them.
        """
        if not isinstance(special_tokens_dict, Mapping):
            return self.backend_tokenizer.add_special_tokens([*special_tokens_dict, *tokens])
        added: list[Any] = []
        for name, value in special_tokens_dict.items():
            is_list = name in EXTRA_TOKEN_NAMES
            special_token = getattr(type(self), name, None)
            if not is_list and (not isinstance(special_token, _SpecialToken) or special_token.is_id):
                raise BadRequest(f"{name!r} is not the name of a special token; expected one such as pad_token")
            values = list(value) if is_list and isinstance(value, list | tuple) else [value]
            if not all(isinstance(token, str | tokenizers.AddedToken) for token in values):
                raise BadRequest(f"invalid {name}={value!r}; expected a string or AddedToken")
            if is_list:
                previous = [] if replace_extra_special_tokens else self.additional_special_tokens
                self.additional_special_tokens = list(dict.fromkeys([*previous, *map(_get_text, values)]))
            else:
                setattr(self, name, _get_text(value))
            added += values
        return self.backend_tokenizer.add_special_tokens([_to_special_token(token) for token in added])

    def num_special_tokens_to_add(self, pair: bool = False, *, is_pair: bool = False) -> int:
        return self.backend_tokenizer.num_special_tokens_to_add(pair or is_pair)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a token, or a list for several; unknown tokens get that of `unk_token`."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        token_id = self.backend_tokenizer.token_to_id(tokens)
        if token_id is None and (unknown := self.special_tokens_map.get("unk_token")) not in (None, tokens):
            return self.backend_tokenizer.token_to_id(unknown)
        return token_id

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the token of an id, or a list for several."""
        ids = to_list(ids)
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        skipped = set(self.all_special_ids) if skip_special_tokens else ()
        return [self.backend_tokenizer.id_to_token(token) for token in map(int, ids) if token not in skipped]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        decoder = self.backend_tokenizer.decoder
        text: str = decoder.decode(list(tokens)) if decoder is not None else " ".join(tokens)
        return text

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> Any:
        """Return the text of token ids; a list of texts for a batch."""
        token_ids = to_list(token_ids)
        if isinstance(token_ids, list) and token_ids and isinstance(token_ids[0], list):
            return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in token_ids]
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        text: str = self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        if clean_up_tokenization_spaces is None:
            clean_up_tokenization_spaces = self.clean_up_tokenization_spaces
        return clean_up_spaces(text) if clean_up_tokenization_spaces else text

    def batch_decode(
        self, sequences: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> list[str]:
        """Return the texts of a batch; the ids of one text give a list of one."""
        rows = to_list(sequences)
        texts = self.decode(rows, skip_special_tokens, clean_up_tokenization_spaces) if rows != [] else []
        return [texts] if isinstance(texts, str) else texts


def to_list(ids: Any) -> Any:
    """Return tensors and arrays, also those in a list, as lists, and 0-dimensional ones as an int."""
    if hasattr(ids, "tolist"):
        return ids.tolist()
    return [item if isinstance(item, int) else to_list(item) for item in ids] if isinstance(ids, list | tuple) else ids


def _get_text(token: str | tokenizers.AddedToken) -> str:
    return token if isinstance(token, str) else token.content


def _to_special_token(token: str | tokenizers.AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(token, normalized=False, special=True) if isinstance(token, str) else token
