"""From texts to their entities: windows that the model can read, their rows, and the spans that come of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cenote.engine.tasks.entity_spans import LabelScheme, TokenDecoder, TokenSpan, drop_overlaps, find_entities
from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.inputs.limits import Limits, resolve_truncation_length
from cenote.inputs.tokenizer import SpecialTokensTemplate, TokenIds, Tokenizer, check_unicode
from cenote.loading.load import LoadedModel
from cenote.protocol.params import AggregationStrategy, PoolingParams, TokenizationParams
from cenote.protocol.requests import EntityRequest, PoolRequest
from cenote.protocol.results import EntityResult, PoolResult

AGGREGATION_STRATEGIES: tuple[AggregationStrategy, ...] = ("none", "simple", "first", "average", "max")
# texts whose tokens are located at once: the tokenizer's records of where things lie are large
TOKENIZE_SLICE_TEXTS = 256


class Window(NamedTuple):
    """A part of a text's tokens, which the model reads by itself."""

    start: int
    end: int
    token_ids: TokenIds  # with special tokens


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the model reads it."""

    text: str
    token_ids: TokenIds  # without special tokens
    starts: TokenIds
    ends: TokenIds
    template: SpecialTokensTemplate  # around them, in every window
    windows: Sequence[Window]
    num_input_tokens: int
    is_input_count_exact: bool  # False: a huge text was cut before all of its tokens were counted

    def get_span(self, window: Window, decoder: TokenDecoder) -> TokenSpan:
        part = slice(window.start, window.end)
        first = len(self.template.prefix)
        return TokenSpan(self.text, self.token_ids[part], self.starts[part], self.ends[part], first, decoder)


class EntityRecognizer:
    """What a model with a class for every token knows of its classes and words."""

    def __init__(self, model: LoadedModel, tokenizer: Tokenizer) -> None:
        description = model.description
        self.tokenizer = tokenizer
        self.max_model_len = description.max_length.value
        # names that a config leaves out are those that Transformers gives
        self.label_scheme = LabelScheme(description.labels or [f"LABEL_{row}" for row in range(description.num_labels)])
        self.decoder = _make_token_decoder(tokenizer, model.tokenizer.unk_token_id)

    @staticmethod
    def supports(model: LoadedModel) -> bool:
        """Whether the model is one: a row of classes for every token."""
        description = model.description
        plan = description.plan
        return (
            description.kind.value == "token"
            and "token_classify" in plan.tasks
            and plan.tok_pooling_type.value == "ALL"
        )

    async def recognize(
        self,
        request: EntityRequest,
        pool: Callable[[PoolRequest], Awaitable[list[PoolResult | PoolingError]]],
        run_in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> list[EntityResult]:
        """The entities of every text; `aside` does what takes time where nobody else is held up."""
        began = time.monotonic()
        readings: list[TokenizedText] = await run_in_thread(lambda: self._tokenize(request))
        seconds = time.monotonic() - began
        owners = [number for number, reading in enumerate(readings) for _ in reading.windows]
        windows = [window for reading in readings for window in reading.windows]
        answers = await pool(_make_window_request(request.pool_request, windows, owners)) if windows else []
        request.pool_request.timing.tokenize_s += seconds
        rows = [_raise_on_error(answer, owner) for answer, owner in zip(answers, owners, strict=True)]
        found: list[EntityResult] = await run_in_thread(lambda: self._extract_all(readings, rows, request))
        return found

    def _tokenize(self, request: EntityRequest) -> list[TokenizedText]:
        how, strategy = request.pool_request.tokenization, request.aggregation_strategy
        if strategy not in AGGREGATION_STRATEGIES:
            raise BadRequest(
                f"no aggregation strategy is called {strategy!r}; there are: {', '.join(AGGREGATION_STRATEGIES)}",
                param="aggregation_strategy",
            )
        if isinstance(request.ignore_labels, str):
            raise BadRequest(f'ignore_labels is a list: ["{request.ignore_labels}"]', param="ignore_labels")
        frame = (
            self.tokenizer.single_template
            if how.add_special_tokens
            else self.tokenizer.single_template.without_special_tokens
        )
        longest = resolve_truncation_length(how, Limits(self.max_model_len)) or self.max_model_len
        room = longest - frame.num_tokens
        if room < 1:
            raise BadRequest(
                f"truncate_prompt_tokens={longest} leaves no room for text beside {frame.num_tokens} special tokens",
                param="truncate_prompt_tokens",
            )
        _check_stride(request.stride, room, strategy)
        texts = [_check_text(text, number) for number, text in enumerate(request.pool_request.inputs)]
        if not texts:
            raise BadRequest("You must pass at least one prompt", param="input")
        readings: list[TokenizedText] = []
        for start in range(0, len(texts), TOKENIZE_SLICE_TEXTS):
            readings += self._tokenize_slice(texts[start : start + TOKENIZE_SLICE_TEXTS], frame, room, request)
        return readings

    def _tokenize_slice(
        self, texts: Sequence[str], template: SpecialTokensTemplate, max_text_tokens: int, request: EntityRequest
    ) -> list[TokenizedText]:
        how, stride = request.pool_request.tokenization, request.stride
        side = how.truncation_side or self.tokenizer.truncation_side
        parts = list(texts)
        if stride is None:  # a huge text must not be tokenized only to be cut
            parts = [
                self.tokenizer.crop_text(text, max_text_tokens, side, lower_case=how.do_lower_case) for text in texts
            ]
        readings = []
        located = self.tokenizer.encode_with_offsets(parts, lower_case=how.do_lower_case)
        for text, part, (ids, starts, ends) in zip(texts, parts, located, strict=True):
            total = len(ids)
            if stride is None:
                kept = slice(0, max_text_tokens) if side == "right" else slice(max(0, total - max_text_tokens), total)
                shift = len(text) - len(part) if side == "left" else 0
                ids, starts, ends = ids[kept], starts[kept] + shift, ends[kept] + shift
            readings.append(
                TokenizedText(
                    text,
                    ids,
                    starts,
                    ends,
                    template,
                    windows=_split_windows(ids, template, max_text_tokens, stride or 0),
                    num_input_tokens=total + template.num_tokens,
                    is_input_count_exact=len(part) == len(text),
                )
            )
        return readings

    def _extract_all(
        self, texts: Sequence[TokenizedText], results: Sequence[PoolResult], request: EntityRequest
    ) -> list[EntityResult]:
        rest = iter(results)
        return [self._extract_entities(reading, [next(rest) for _ in reading.windows], request) for reading in texts]

    def _extract_entities(
        self, text: TokenizedText, results: Sequence[PoolResult], request: EntityRequest
    ) -> EntityResult:
        entities = []
        for window, answer in zip(text.windows, results, strict=True):
            tokens = text.get_span(window, self.decoder)
            rows = np.asarray(answer.data)[tokens.first_index : tokens.first_index + len(tokens.token_ids)]
            strategy, ignored = request.aggregation_strategy, request.ignore_labels
            entities += find_entities(tokens, rows, self.label_scheme, strategy, ignored)
        if len(text.windows) > 1:
            entities = drop_overlaps(entities)
        token_ids = _add_special_tokens(text.token_ids, text.template)
        num_tokens = sum(len(window.token_ids) for window in text.windows)
        return EntityResult(entities, token_ids, num_tokens, text.num_input_tokens, text.is_input_count_exact)


def make_unsupported_error(model: str) -> Unsupported:
    return Unsupported(
        f"{model} has no named class for every token, which entities are made of: that is a model for token "
        "classification whose pooling is ALL",
        param="task",
    )


def _make_token_decoder(tokenizer: Tokenizer, unk_token_id: int | None) -> TokenDecoder:
    raw = tokenizer.raw
    decoder = raw.decoder
    lengths = None
    if getattr(raw.model, "continuing_subword_prefix", None):
        lengths = np.zeros(tokenizer.max_token_id + 1, dtype=np.int32)
        for token, row in raw.get_vocab(with_added_tokens=True).items():
            lengths[row] = len(token)
    return TokenDecoder(
        convert_id_to_token=lambda token: raw.id_to_token(token) or "",
        convert_tokens_to_string=" ".join if decoder is None else lambda tokens: decoder.decode(list(tokens)),
        token_lengths=lengths,
        unk_token_id=-1 if unk_token_id is None else unk_token_id,
    )


def _check_text(text: Any, index: int) -> str:
    try:
        if not isinstance(text, str):
            raise BadRequest("entities are parts of a text: give texts, not token ids or messages", param="input")
        return check_unicode(text)
    except PoolingError as error:
        error.index = index
        raise


def _check_stride(stride: int | None, max_text_tokens: int, strategy: AggregationStrategy) -> None:
    if stride is None:
        return
    if isinstance(stride, bool) or not isinstance(stride, int) or not 0 <= stride < max_text_tokens:
        raise BadRequest(
            f"stride is the number of tokens that two windows share, from 0 to {max_text_tokens - 1}: "
            f"a window has room for {max_text_tokens}; got {stride!r}",
            param="stride",
        )
    if strategy == "none":
        raise BadRequest(
            "windows of a long text overlap, and single tokens would come twice: with stride, aggregation_strategy "
            "is simple, first, average or max",
            param="aggregation_strategy",
        )


def _split_windows(ids: TokenIds, template: SpecialTokensTemplate, max_text_tokens: int, stride: int) -> list[Window]:
    """One, or as many as it takes to read all."""
    if not len(ids) + template.num_tokens:
        return []
    last = max(0, len(ids) - stride - 1) // (max_text_tokens - stride) if len(ids) > max_text_tokens else 0
    starts = [number * (max_text_tokens - stride) for number in range(last + 1)]
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


def _make_window_request(request: PoolRequest, windows: Sequence[Window], text_indices: Sequence[int]) -> PoolRequest:
    adapter = request.adapter
    if adapter is not None and not isinstance(adapter, str):
        adapter = [adapter[owner] for owner in text_indices]
    inputs: list[Any] = [window.token_ids for window in windows]
    return replace(
        request,
        inputs=inputs,
        params=PoolingParams(use_activation=True),
        tokenization=TokenizationParams(),
        prompt=None,
        prompt_name=None,
        adapter=adapter,
        return_exceptions=True,  # so that an error can be told with the number of its text
    )


def _raise_on_error(result: PoolResult | PoolingError, text_index: int) -> PoolResult:
    if isinstance(result, PoolingError):
        result.index = text_index
        raise result
    return result
