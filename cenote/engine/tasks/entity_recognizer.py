"""Named-entity recognition: split texts into windows, classify their tokens, merge them into entities."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.engine.tasks.entity_settings import EntitySettings
from cenote.engine.tasks.entity_spans import LabelScheme, TokenDecoder, TokenSpan, drop_overlaps, find_entities
from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.inputs.limits import Limits, resolve_truncation_length
from cenote.inputs.tokenizer import SpecialTokensTemplate, TokenIds, Tokenizer, check_unicode
from cenote.protocol.params import AggregationStrategy, PoolingParams, TokenizationParams
from cenote.protocol.requests import EntityRequest, PoolRequest
from cenote.protocol.results import EntityResult, PoolResult

AGGREGATION_STRATEGIES: tuple[AggregationStrategy, ...] = ("none", "simple", "first", "average", "max")
# texts tokenized at once: encodings with character offsets take much memory
TOKENIZE_SLICE_TEXTS = 256


class Window(NamedTuple):
    """A slice of a text's tokens that is one sequence of the model."""

    start: int
    end: int
    token_ids: TokenIds  # with special tokens


@dataclass(frozen=True, slots=True)
class EntityText:
    """The tokens of one text with their character offsets, and the windows that they are split into."""

    text: str
    token_ids: TokenIds  # without special tokens
    starts: TokenIds
    ends: TokenIds
    template: SpecialTokensTemplate  # added to every window
    windows: Sequence[Window]
    num_input_tokens: int
    is_input_count_exact: bool  # False: a huge text was truncated before its tokens were counted

    def get_span(self, window: Window, decoder: TokenDecoder) -> TokenSpan:
        part = slice(window.start, window.end)
        first = len(self.template.prefix)
        return TokenSpan(self.text, self.token_ids[part], self.starts[part], self.ends[part], first, decoder)


class EntityRecognizer:
    """Find entities with a token classification model."""

    def __init__(self, settings: EntitySettings, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = settings.max_model_len
        self.label_scheme = LabelScheme(settings.labels)
        self.decoder = _make_token_decoder(tokenizer, settings.unk_token_id)

    async def recognize(self, request: EntityRequest, calls: EngineCalls) -> list[EntityResult]:
        """Return the entities of every text."""
        started_at = time.monotonic()
        texts = await calls.run_in_thread(self._tokenize, request)
        tokenize_s = time.monotonic() - started_at
        text_indices = [index for index, text in enumerate(texts) for _ in text.windows]
        windows = [window for text in texts for window in text.windows]
        sequences = [window.token_ids for window in windows]
        window_request = make_sequence_request(request.pool_request, sequences, text_indices)
        results = await calls.pool(window_request) if windows else []
        request.pool_request.timing.tokenize_s += tokenize_s
        pooled = [raise_on_error(result, index) for result, index in zip(results, text_indices, strict=True)]
        return await calls.run_in_thread(self._extract_all, texts, pooled, request)

    def _tokenize(self, request: EntityRequest) -> list[EntityText]:
        tokenization, strategy = request.pool_request.tokenization, request.aggregation_strategy
        if request.labels is not None or request.threshold is not None:
            raise BadRequest(
                "labels and threshold are for models without labels of their own (GLiNER); this one has "
                f"{', '.join(self.label_scheme.names[:5])}, ...",
                param="threshold" if request.labels is None else "labels",
            )
        if strategy not in AGGREGATION_STRATEGIES:
            raise BadRequest(
                f"invalid aggregation_strategy {strategy!r}; expected one of: {', '.join(AGGREGATION_STRATEGIES)}",
                param="aggregation_strategy",
            )
        if isinstance(request.ignore_labels, str):
            raise BadRequest(
                f'ignore_labels must be a list of labels, for example ["{request.ignore_labels}"]',
                param="ignore_labels",
            )
        template = self.tokenizer.find_template(tokenization)
        max_tokens = resolve_truncation_length(tokenization, Limits(self.max_model_len)) or self.max_model_len
        max_text_tokens = max_tokens - template.num_tokens
        if max_text_tokens < 1:
            raise BadRequest(
                f"truncate_prompt_tokens={max_tokens} must be greater than the {template.num_tokens} special tokens "
                "of a sequence",
                param="truncate_prompt_tokens",
            )
        _check_stride(request.stride, max_text_tokens, strategy)
        texts = check_texts(request.pool_request.inputs)
        tokenized: list[EntityText] = []
        for start in range(0, len(texts), TOKENIZE_SLICE_TEXTS):
            part = texts[start : start + TOKENIZE_SLICE_TEXTS]
            tokenized += self._tokenize_slice(part, template, max_text_tokens, request)
        return tokenized

    def _tokenize_slice(
        self, texts: Sequence[str], template: SpecialTokensTemplate, max_text_tokens: int, request: EntityRequest
    ) -> list[EntityText]:
        tokenization, stride = request.pool_request.tokenization, request.stride
        side = self.tokenizer.find_truncation_side(tokenization)
        lower_case = tokenization.do_lower_case
        parts = list(texts)
        if stride is None:  # do not tokenize all of a huge text only to truncate it
            parts = [self.tokenizer.crop_text(text, max_text_tokens, side, lower_case=lower_case) for text in texts]
        tokenized = []
        encodings = self.tokenizer.encode_with_offsets(parts, lower_case=lower_case)
        for text, part, (ids, starts, ends) in zip(texts, parts, encodings, strict=True):
            num_tokens = len(ids)
            if stride is None:
                first = 0 if side == "right" else max(0, num_tokens - max_text_tokens)
                kept = slice(first, first + max_text_tokens)
                shift = len(text) - len(part) if side == "left" else 0
                ids, starts, ends = ids[kept], starts[kept] + shift, ends[kept] + shift
            tokenized.append(
                EntityText(
                    text,
                    ids,
                    starts,
                    ends,
                    template,
                    windows=_split_windows(ids, template, max_text_tokens, stride or 0),
                    num_input_tokens=num_tokens + template.num_tokens,
                    is_input_count_exact=len(part) == len(text),
                )
            )
        return tokenized

    def _extract_all(
        self, texts: Sequence[EntityText], results: Sequence[PoolResult], request: EntityRequest
    ) -> list[EntityResult]:
        remaining = iter(results)
        return [self._extract_entities(text, [next(remaining) for _ in text.windows], request) for text in texts]

    def _extract_entities(
        self, text: EntityText, results: Sequence[PoolResult], request: EntityRequest
    ) -> EntityResult:
        entities = []
        for window, result in zip(text.windows, results, strict=True):
            tokens = text.get_span(window, self.decoder)
            probs = np.asarray(result.data)[tokens.first_index : tokens.first_index + len(tokens.token_ids)]
            strategy, ignore_labels = request.aggregation_strategy, request.ignore_labels
            entities += find_entities(tokens, probs, self.label_scheme, strategy, ignore_labels)
        if len(text.windows) > 1:
            entities = drop_overlaps(entities)
        token_ids = _add_special_tokens(text.token_ids, text.template)
        num_tokens = sum(len(window.token_ids) for window in text.windows)
        return EntityResult(entities, token_ids, num_tokens, text.num_input_tokens, text.is_input_count_exact)


def _make_token_decoder(tokenizer: Tokenizer, unk_token_id: int | None) -> TokenDecoder:
    raw = tokenizer.raw
    decoder = raw.decoder
    lengths = None
    if getattr(raw.model, "continuing_subword_prefix", None):
        lengths = np.zeros(tokenizer.max_token_id + 1, dtype=np.int32)
        for token, token_id in raw.get_vocab(with_added_tokens=True).items():
            lengths[token_id] = len(token)
    return TokenDecoder(
        convert_id_to_token=lambda token: raw.id_to_token(token) or "",
        convert_tokens_to_string=" ".join if decoder is None else lambda tokens: decoder.decode(list(tokens)),
        token_lengths=lengths,
        unk_token_id=-1 if unk_token_id is None else unk_token_id,
    )


def check_texts(inputs: Sequence[Any]) -> list[str]:
    if not inputs:
        raise BadRequest("You must pass at least one prompt", param="input")
    return [_check_text(text, index) for index, text in enumerate(inputs)]


def _check_text(text: Any, index: int) -> str:
    try:
        if not isinstance(text, str):
            raise BadRequest("entities requires texts, not token ids or messages", param="input")
        return check_unicode(text)
    except PoolingError as error:
        error.index = index
        raise


def _check_stride(stride: int | None, max_text_tokens: int, strategy: AggregationStrategy) -> None:
    if stride is None:
        return
    if isinstance(stride, bool) or not isinstance(stride, int) or not 0 <= stride < max_text_tokens:
        raise BadRequest(
            f"invalid stride {stride!r}; expected the number of tokens that neighbouring windows share, from 0 to "
            f"{max_text_tokens - 1}: a window holds {max_text_tokens} tokens of text",
            param="stride",
        )
    if strategy == "none":
        raise BadRequest(
            "stride cannot be combined with aggregation_strategy 'none': windows overlap, and tokens would be "
            "returned twice; use simple, first, average or max",
            param="aggregation_strategy",
        )


def _split_windows(ids: TokenIds, template: SpecialTokensTemplate, max_text_tokens: int, stride: int) -> list[Window]:
    """Split tokens into windows that share `stride` tokens; no windows for an empty sequence."""
    if not len(ids) + template.num_tokens:
        return []
    step = max_text_tokens - stride
    last = max(0, len(ids) - stride - 1) // step if len(ids) > max_text_tokens else 0
    starts = [index * step for index in range(last + 1)]
    return [
        Window(
            start,
            min(start + max_text_tokens, len(ids)),
            _add_special_tokens(ids[start : start + max_text_tokens], template),
        )
        for start in starts
    ]


def _add_special_tokens(ids: TokenIds, template: SpecialTokensTemplate) -> TokenIds:
    return np.concatenate((template.prefix, ids, template.suffix))


def make_sequence_request(
    request: PoolRequest, sequences: Sequence[TokenIds], text_indices: Sequence[int]
) -> PoolRequest:
    """Return the request for token ids, of which a text may have several sequences."""
    if request.tokenization.pad_prompt_tokens:
        raise Unsupported("entities are found in texts without padding; leave out padding", param="padding")
    adapter = request.adapter
    if adapter is not None and not isinstance(adapter, str):
        adapter = [adapter[index] for index in text_indices]
    inputs: list[Any] = list(sequences)
    return request.replace(
        inputs=inputs,
        params=PoolingParams(use_activation=True),
        tokenization=TokenizationParams(),
        prompt=None,
        prompt_name=None,
        adapter=adapter,
        return_exceptions=True,  # so that errors get the index of their text, not of their sequence
    )


def raise_on_error(result: PoolResult | PoolingError, text_index: int) -> PoolResult:
    if isinstance(result, PoolingError):
        result.index = text_index
        raise result
    return result
