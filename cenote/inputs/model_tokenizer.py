"""ModelTokenizer: the tokenizer of a model with the methods of Transformers, for programs and plugins."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tokenizers

from cenote.errors import BadRequest
from cenote.inputs.chat import ChatSettings, render_conversation
from cenote.inputs.encoded_texts import EncodedIds, EncodedTexts, to_tensor
from cenote.inputs.padded_columns import check_padding, collect_columns, map_rows, pad_columns
from cenote.inputs.token_vocabulary import TokenVocabulary
from cenote.protocol.input_types import Conversation
from cenote.protocol.params import TruncationSide

UNLIMITED_LENGTH = int(1e30)  # model_max_length of a tokenizer without a limit, in Transformers
MAX_SENSIBLE_LENGTH = int(1e20)  # above it there is no limit
NO_PAD_TOKEN = "this tokenizer has no padding token; set one: tokenizer.pad_token = tokenizer.eos_token"
TRUNCATION_STRATEGIES = ("longest_first", "only_first", "only_second")


class ModelTokenizer(TokenVocabulary):
    """A copy of a model's tokenizer: changing it does not affect the engine.

    It has the names and results of Transformers' tokenizers. The methods of `tokenizers.Tokenizer` that Transformers
    does not have are there as well: `token_to_id`, `encode_batch`, `enable_truncation` and so on.
    """

    is_fast = True

    def __init__(
        self,
        raw: tokenizers.Tokenizer,
        *,
        name_or_path: str,
        special_tokens: Mapping[str, str],
        additional_special_tokens: Sequence[str] = (),
        model_max_length: int | None = None,
        truncation_side: TruncationSide = "right",
        padding_side: TruncationSide = "right",
        has_token_types: bool = False,
        clean_up: bool = False,
        chat_settings: ChatSettings | None = None,
    ) -> None:
        super().__init__(raw, special_tokens, additional_special_tokens, clean_up=clean_up)
        self.name_or_path = name_or_path
        self.model_max_length = model_max_length or UNLIMITED_LENGTH
        self.truncation_side = truncation_side
        self.padding_side = padding_side
        self.model_input_names = ["input_ids", *["token_type_ids"] * has_token_types, "attention_mask"]
        self.chat_template = chat_settings.tokenizer_template if chat_settings else None
        self._chat_settings = chat_settings or ChatSettings()
        self._lock = threading.Lock()  # truncation and padding are settings of the backend

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"ModelTokenizer(name_or_path={self.name_or_path!r}, vocab_size={self.vocab_size})"

    def __call__(
        self,
        text: Any,
        text_pair: Any = None,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: TruncationSide | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        verbose: bool = True,
    ) -> EncodedTexts:
        """Encode one text, or a list of them; with `text_pair`, pairs of texts. Columns of one text are flat lists."""
        inputs, is_single = _parse_texts(text, text_pair, is_split_into_words)
        truncate = self._resolve_truncation(truncation, max_length, padding)
        with self._configured(truncate, max_length, stride, padding, pad_to_multiple_of, padding_side):
            encodings: list[tokenizers.Encoding] = self.backend_tokenizer.encode_batch(
                inputs, is_pretokenized=is_split_into_words, add_special_tokens=add_special_tokens
            )
        columns: dict[str, list[Any]] = {"input_ids": [item.ids for item in encodings]}
        if _choose(return_token_type_ids, "token_type_ids" in self.model_input_names):
            columns["token_type_ids"] = [item.type_ids for item in encodings]
        if _choose(return_attention_mask, "attention_mask" in self.model_input_names):
            columns["attention_mask"] = [item.attention_mask for item in encodings]
        if return_special_tokens_mask:
            columns["special_tokens_mask"] = [item.special_tokens_mask for item in encodings]
        if return_offsets_mapping:
            columns["offset_mapping"] = [item.offsets for item in encodings]
        if return_length:
            columns["length"] = [len(item) for item in encodings]
        if return_overflowing_tokens:
            raise BadRequest("return_overflowing_tokens is not supported; split long texts before tokenizing them")
        if return_tensors is not None:
            return EncodedTexts({name: to_tensor(rows, return_tensors) for name, rows in columns.items()}, encodings)
        return EncodedTexts({name: rows[0] if is_single else rows for name, rows in columns.items()}, encodings)

    def encode(
        self,
        text: Any = None,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        *,
        sequence: Any = None,
        pair: Any = None,
        is_pretokenized: bool = False,
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the token ids of one text or pair; a list for several.

        `sequence`, `pair` and `is_pretokenized` are the names of `tokenizers.Tokenizer.encode`.
        """
        options = {"padding": padding, "truncation": truncation, "max_length": max_length, **kwargs}
        encoded = self(
            text if text is not None else sequence,
            text_pair if text_pair is not None else pair,
            add_special_tokens=add_special_tokens,
            return_tensors=return_tensors,
            **{"is_split_into_words": is_pretokenized, **options},
        )
        if return_tensors is not None:
            return encoded["input_ids"]
        rows = [EncodedIds(encoding) for encoding in encoded.encodings]
        return rows if encoded["input_ids"] == rows else rows[0]

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: TruncationSide | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> EncodedTexts:
        """Pad the columns of a call, or a list of such results, for example in a data loader."""
        check_padding(padding)
        columns, kind = collect_columns(encoded_inputs)
        length = None
        if padding == "max_length":
            length = self.model_max_length if max_length is None else max_length
        is_padded = padding not in (False, "do_not_pad") and (length is None or length <= MAX_SENSIBLE_LENGTH)
        if is_padded and self.pad_token is None:
            raise BadRequest(NO_PAD_TOKEN)
        if _choose(return_attention_mask, "attention_mask" in self.model_input_names):
            columns.setdefault("attention_mask", map_rows(lambda ids: [1] * len(ids), columns["input_ids"]))
        if is_padded:
            side = padding_side or self.padding_side
            columns = pad_columns(columns, self.pad_token_id, length, pad_to_multiple_of, side)
        if (kind := return_tensors or kind) is not None:
            columns = {name: to_tensor(column, kind) for name, column in columns.items()}
        return EncodedTexts(columns)

    def tokenize(self, text: str, pair: str | None = None, add_special_tokens: bool = False) -> list[str]:
        return self(text, pair, add_special_tokens=add_special_tokens).tokens()

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        *,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = False,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the text of a conversation, or its token ids; further keywords are variables of the template.

        Several conversations give a list.
        """
        is_single = bool(conversation) and isinstance(conversation[0], Mapping)
        settings = replace(
            self._chat_settings,
            server_template=None,
            tokenizer_template=self.chat_template,
            special_tokens=self.special_tokens_map,
        )
        texts = [
            render_conversation(
                Conversation(
                    messages,
                    template=chat_template,
                    template_kwargs={**kwargs, "tools": tools, "documents": documents},
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                ),
                settings,
            )
            for messages in ([conversation] if is_single else conversation)
        ]
        if not tokenize:
            return texts[0] if is_single else texts
        encoded = self(
            texts[0] if is_single else texts,
            add_special_tokens=False,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            return_tensors=return_tensors,
            **(tokenizer_kwargs or {}),
        )
        return encoded if return_dict else encoded["input_ids"]

    def _resolve_truncation(
        self, truncation: bool | str | None, max_length: int | None, padding: bool | str
    ) -> str | None:
        """Return the strategy; a max_length alone truncates too, unless it is the length to pad to."""
        if truncation is None:
            truncation = max_length is not None and padding is False
        if truncation in (False, "do_not_truncate"):
            return None
        strategy = "longest_first" if truncation is True else truncation
        if strategy not in TRUNCATION_STRATEGIES:
            raise BadRequest(
                f"invalid truncation={truncation!r}; expected a bool or one of: {', '.join(TRUNCATION_STRATEGIES)}"
            )
        return None if max_length is None and self.model_max_length > MAX_SENSIBLE_LENGTH else str(strategy)

    @contextmanager
    def _configured(
        self,
        strategy: str | None,
        max_length: int | None,
        stride: int,
        padding: bool | str,
        pad_to_multiple_of: int | None,
        padding_side: TruncationSide | None,
    ) -> Iterator[None]:
        """Set truncation and padding of the backend during one call."""
        raw = self.backend_tokenizer
        limit = self.model_max_length if max_length is None else max_length
        is_padded = padding not in (False, "do_not_pad")
        check_padding(padding)
        pad_token = self.pad_token
        if is_padded and pad_token is None:
            raise BadRequest(NO_PAD_TOKEN)
        with self._lock:
            previous_truncation, previous_padding = raw.truncation, raw.padding
            try:
                if strategy is not None:
                    raw.enable_truncation(limit, stride=stride, strategy=strategy, direction=self.truncation_side)
                if is_padded:
                    raw.enable_padding(
                        direction=padding_side or self.padding_side,
                        pad_id=self.pad_token_id,
                        pad_token=pad_token,
                        length=limit if padding == "max_length" and limit <= MAX_SENSIBLE_LENGTH else None,
                        pad_to_multiple_of=pad_to_multiple_of,
                    )
                yield
            finally:
                if strategy is not None:
                    _restore(raw.no_truncation, raw.enable_truncation, previous_truncation)
                if is_padded:
                    _restore(raw.no_padding, raw.enable_padding, previous_padding)


def _restore(disable: Any, enable: Any, settings: Mapping[str, Any] | None) -> None:
    if settings is None:
        disable()
    else:
        enable(**settings)


def _parse_texts(text: Any, text_pair: Any, is_split_into_words: bool) -> tuple[list[Any], bool]:
    """Return the inputs of `encode_batch`, and whether there is only one, not in a list."""
    is_single = isinstance(text, str) or (is_split_into_words and bool(text) and isinstance(text[0], str))
    texts = [text] if is_single else text
    if not isinstance(texts, list | tuple) or not all(isinstance(item, str | list | tuple) for item in texts):
        raise BadRequest("text input must be of type `str`, `list[str]` or `list[list[str]]`")
    if text_pair is None:
        return [tuple(item) if not is_split_into_words and not isinstance(item, str) else item for item in texts], (
            is_single
        )
    pairs = [text_pair] if is_single else text_pair
    if len(pairs) != len(texts):
        raise BadRequest(f"text and text_pair must have the same length, got {len(texts)} and {len(pairs)}")
    return list(zip(texts, pairs, strict=True)), is_single


def _choose(value: bool | None, default: bool) -> bool:
    return default if value is None else value
