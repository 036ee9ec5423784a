"""From texts to their entities: windows that the model can read, their rows, and the spans that come of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cenote.engine.tasks.entity_spans import Labels, Spelling, Tokens, find_entities, without_overlaps
from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.inputs.limits import Limits, wanted_length
from cenote.inputs.tokenizer import Frame, TokenIds, Tokenizer, check_unicode
from cenote.loading.load import LoadedModel
from cenote.protocol.requests import (
    Aggregation,
    EntityRequest,
    Pooled,
    PoolingParams,
    PoolRequest,
    Tagged,
    Tokenization,
)

STRATEGIES: tuple[Aggregation, ...] = ("none", "simple", "first", "average", "max")
# texts whose tokens are located at once: the tokenizer's records of where things lie are large
SLICE_TEXTS = 256


class Window(NamedTuple):
    """A part of a text's tokens, which the model reads by itself."""

    start: int
    end: int
    token_ids: TokenIds  # with special tokens


@dataclass(frozen=True, slots=True)
class Reading:
    """One text as the model reads it."""

    text: str
    token_ids: TokenIds  # without special tokens
    starts: TokenIds
    ends: TokenIds
    frame: Frame  # around them, in every window
    windows: Sequence[Window]
    num_input_tokens: int
    exact: bool  # False: a huge text was cut before all of its tokens were counted

    def tokens(self, window: Window, spelling: Spelling) -> Tokens:
        part = slice(window.start, window.end)
        first = len(self.frame.prefix)
        return Tokens(self.text, self.token_ids[part], self.starts[part], self.ends[part], first, spelling)


class Tagger:
    """What a model with a class for every token knows of its classes and words."""

    def __init__(self, model: LoadedModel, tokenizer: Tokenizer) -> None:
        description = model.description
        self.tokenizer = tokenizer
        self.max_model_len = description.max_length.value
        # names that a config leaves out are those that Transformers gives
        self.labels = Labels(description.labels or [f"LABEL_{row}" for row in range(description.num_labels)])
        self.spelling = _spelling(tokenizer, model.tokenizer.unk_token_id)

    @staticmethod
    def fits(model: LoadedModel) -> bool:
        """Whether the model is one: a row of classes for every token."""
        description = model.description
        plan = description.plan
        return description.kind.value == "token" and "token_classify" in plan.tasks and plan.token.value == "ALL"

    async def find(
        self,
        request: EntityRequest,
        pool: Callable[[PoolRequest], Awaitable[list[Pooled | PoolingError]]],
        aside: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> list[Tagged]:
        """The entities of every text; `aside` does what takes time where nobody else is held up."""
        began = time.monotonic()
        readings: list[Reading] = await aside(lambda: self._read(request))
        seconds = time.monotonic() - began
        owners = [number for number, reading in enumerate(readings) for _ in reading.windows]
        windows = [window for reading in readings for window in reading.windows]
        answers = await pool(_windows_request(request.pool, windows, owners)) if windows else []
        request.pool.timing.tokenize += seconds
        rows = [_checked(answer, owner) for answer, owner in zip(answers, owners, strict=True)]
        found: list[Tagged] = await aside(lambda: self._tag(readings, rows, request))
        return found

    def _read(self, request: EntityRequest) -> list[Reading]:
        how, strategy = request.pool.tokenization, request.aggregation_strategy
        if strategy not in STRATEGIES:
            raise BadRequest(
                f"no aggregation strategy is called {strategy!r}; there are: {', '.join(STRATEGIES)}",
                param="aggregation_strategy",
            )
        if isinstance(request.ignore_labels, str):
            raise BadRequest(f'ignore_labels is a list: ["{request.ignore_labels}"]', param="ignore_labels")
        frame = self.tokenizer.single if how.add_special_tokens else self.tokenizer.single.bare
        longest = wanted_length(how, Limits(self.max_model_len)) or self.max_model_len
        room = longest - frame.num_tokens
        if room < 1:
            raise BadRequest(
                f"truncate_prompt_tokens={longest} leaves no room for text beside {frame.num_tokens} special tokens",
                param="truncate_prompt_tokens",
            )
        _check_stride(request.stride, room, strategy)
        texts = [_checked_text(text, number) for number, text in enumerate(request.pool.inputs)]
        if not texts:
            raise BadRequest("You must pass at least one prompt", param="input")
        readings: list[Reading] = []
        for start in range(0, len(texts), SLICE_TEXTS):
            readings += self._read_slice(texts[start : start + SLICE_TEXTS], frame, room, request)
        return readings

    def _read_slice(self, texts: Sequence[str], frame: Frame, room: int, request: EntityRequest) -> list[Reading]:
        how, stride = request.pool.tokenization, request.stride
        side = how.truncation_side or self.tokenizer.truncation_side
        parts = list(texts)
        if stride is None:  # a huge text must not be tokenized only to be cut
            parts = [self.tokenizer.enough(text, room, side, lower_case=how.do_lower_case) for text in texts]
        readings = []
        located = self.tokenizer.locate(parts, lower_case=how.do_lower_case)
        for text, part, (ids, starts, ends) in zip(texts, parts, located, strict=True):
            total = len(ids)
            if stride is None:
                kept = slice(0, room) if side == "right" else slice(max(0, total - room), total)
                shift = len(text) - len(part) if side == "left" else 0
                ids, starts, ends = ids[kept], starts[kept] + shift, ends[kept] + shift
            readings.append(
                Reading(
                    text,
                    ids,
                    starts,
                    ends,
                    frame,
                    windows=_windows(ids, frame, room, stride or 0),
                    num_input_tokens=total + frame.num_tokens,
                    exact=len(part) == len(text),
                )
            )
        return readings

    def _tag(self, readings: Sequence[Reading], answers: Sequence[Pooled], request: EntityRequest) -> list[Tagged]:
        rest = iter(answers)
        return [self._tagged(reading, [next(rest) for _ in reading.windows], request) for reading in readings]

    def _tagged(self, reading: Reading, answers: Sequence[Pooled], request: EntityRequest) -> Tagged:
        entities = []
        for window, answer in zip(reading.windows, answers, strict=True):
            tokens = reading.tokens(window, self.spelling)
            rows = np.asarray(answer.data)[tokens.first : tokens.first + len(tokens.ids)]
            strategy, ignored = request.aggregation_strategy, request.ignore_labels
            entities += find_entities(tokens, rows, self.labels, strategy, ignored)
        if len(reading.windows) > 1:
            entities = without_overlaps(entities)
        token_ids = _framed(reading.token_ids, reading.frame)
        num_tokens = sum(len(window.token_ids) for window in reading.windows)
        return Tagged(entities, token_ids, num_tokens, reading.num_input_tokens, reading.exact)


def not_a_tagger(model: str) -> Unsupported:
    return Unsupported(
        f"{model} has no named class for every token, which entities are made of: that is a model for token "
        "classification whose pooling is ALL",
        param="task",
    )


def _spelling(tokenizer: Tokenizer, unknown: int | None) -> Spelling:
    raw = tokenizer.raw
    decoder = raw.decoder
    lengths = None
    if getattr(raw.model, "continuing_subword_prefix", None):
        lengths = np.zeros(tokenizer.max_token_id + 1, dtype=np.int32)
        for token, row in raw.get_vocab(with_added_tokens=True).items():
            lengths[row] = len(token)
    return Spelling(
        token=lambda token: raw.id_to_token(token) or "",
        join=" ".join if decoder is None else lambda tokens: decoder.decode(list(tokens)),
        lengths=lengths,
        unknown=-1 if unknown is None else unknown,
    )


def _checked_text(text: Any, number: int) -> str:
    try:
        if not isinstance(text, str):
            raise BadRequest("entities are parts of a text: give texts, not token ids or messages", param="input")
        return check_unicode(text)
    except PoolingError as error:
        error.index = number
        raise


def _check_stride(stride: int | None, room: int, strategy: Aggregation) -> None:
    if stride is None:
        return
    if isinstance(stride, bool) or not isinstance(stride, int) or not 0 <= stride < room:
        raise BadRequest(
            f"stride is the number of tokens that two windows share, from 0 to {room - 1}: "
            f"a window has room for {room}; got {stride!r}",
            param="stride",
        )
    if strategy == "none":
        raise BadRequest(
            "windows of a long text overlap, and single tokens would come twice: with stride, aggregation_strategy "
            "is simple, first, average or max",
            param="aggregation_strategy",
        )


def _windows(ids: TokenIds, frame: Frame, room: int, stride: int) -> list[Window]:
    """One, or as many as it takes to read all."""
    if not len(ids) + frame.num_tokens:
        return []
    last = max(0, len(ids) - stride - 1) // (room - stride) if len(ids) > room else 0
    starts = [number * (room - stride) for number in range(last + 1)]
    return [Window(start, min(start + room, len(ids)), _framed(ids[start : start + room], frame)) for start in starts]


def _framed(ids: TokenIds, frame: Frame) -> TokenIds:
    return np.concatenate((frame.prefix, ids, frame.suffix))


def _windows_request(request: PoolRequest, windows: Sequence[Window], owners: Sequence[int]) -> PoolRequest:
    adapter = request.adapter
    if adapter is not None and not isinstance(adapter, str):
        adapter = [adapter[owner] for owner in owners]
    inputs: list[Any] = [window.token_ids for window in windows]
    return replace(
        request,
        inputs=inputs,
        params=PoolingParams(use_activation=True),
        tokenization=Tokenization(),
        prompt=None,
        prompt_name=None,
        adapter=adapter,
        keep_going=True,  # so that an error can be told with the number of its text
    )


def _checked(answer: Pooled | PoolingError, owner: int) -> Pooled:
    if isinstance(answer, PoolingError):
        answer.index = owner
        raise answer
    return answer
