"""Named-entity recognition with the labels of the request (GLiNER): score spans of words against each label."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Encoding

from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.engine.tasks.entity_recognizer import check_texts, make_sequence_request, raise_on_error
from cenote.engine.tasks.entity_settings import EntitySettings
from cenote.engine.tasks.span_selection import select_spans
from cenote.engine.tasks.word_splitting import Words, split_as_gliner2, split_words
from cenote.errors import BadRequest
from cenote.inputs.limits import Limits, resolve_truncation_length
from cenote.inputs.tokenizer import TokenIds, Tokenizer
from cenote.protocol.requests import EntityRequest
from cenote.protocol.results import Entity, EntityResult, PoolResult
from cenote.protocol.spans import ScoredSpan, SpanPlaces

DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text below its labels: the token ids of both, and where words and labels are."""

    text: str
    words: Sequence[tuple[int, int]]  # start and end in characters
    token_ids: TokenIds
    word_rows: Sequence[int]  # the first token of each word; -1: the word has none
    label_rows: Sequence[int]
    num_dropped_words: int  # by truncation


class SpanRecognizer:
    """Find the entities of any labels."""

    def __init__(self, settings: EntitySettings, tokenizer: Tokenizer) -> None:
        assert settings.span_head is not None, "it finds the entities of labels in a request"
        self.spec = settings.span_head
        self.raw = tokenizer.raw
        self.max_model_len = settings.max_model_len

    async def recognize(self, request: EntityRequest, calls: EngineCalls) -> list[EntityResult]:
        """Return the entities of every text."""
        started_at = time.monotonic()
        labels, threshold = _check_options(request)
        texts = await calls.run_in_thread(self._tokenize, request, labels)
        tokenize_s = time.monotonic() - started_at
        indices = [index for index, text in enumerate(texts) if text.words]
        sequences = [texts[index].token_ids for index in indices]
        places = [SpanPlaces(threshold, texts[index].word_rows, texts[index].label_rows) for index in indices]
        pool_request = make_sequence_request(request.pool_request, sequences, indices).replace(
            operands=[place.to_operand() for place in places],
        )
        results = await calls.pool(pool_request) if sequences else []
        request.pool_request.timing.tokenize_s += tokenize_s
        found = {index: raise_on_error(result, index) for index, result in zip(indices, results, strict=True)}
        return await calls.run_in_thread(self._make_results, texts, found, labels, request.ignore_labels)

    def _tokenize(self, request: EntityRequest, labels: Sequence[str]) -> list[LabelledText]:
        tokenization = request.pool_request.tokenization
        max_tokens = resolve_truncation_length(tokenization, Limits(self.max_model_len)) or self.max_model_len
        spec, prompt = self.spec, self.spec.prompt
        parts = [part for label in labels for part in (prompt.label_token, label)]
        before = [*prompt.before_labels, *parts, *prompt.after_labels]
        split = split_as_gliner2 if prompt.splits_as_gliner2 else split_words
        texts = check_texts(request.pool_request.inputs)
        found = [split(text) for text in texts]
        inputs = [[*before, *words.texts[: spec.max_words]] for words in found]
        encodings = self.raw.encode_batch(inputs, is_pretokenized=True, add_special_tokens=prompt.adds_special_tokens)
        return [
            self._fit(text, words, before, encoding, max_tokens)
            for text, words, encoding in zip(texts, found, encodings, strict=True)
        ]

    def _fit(self, text: str, words: Words, prompt: list[str], encoding: Encoding, max_tokens: int) -> LabelledText:
        """Return the input with as many words as fit."""
        rows, spans, spec = _find_first_tokens(encoding), words.spans, self.spec.prompt
        num_words = min(len(spans), self.spec.max_words)
        while num_words and len(encoding.ids) > max_tokens:
            num_suffix = sum(word is None for word in encoding.word_ids[1:])
            word_ids = [-1 if word is None else word for word in encoding.word_ids[: max_tokens - num_suffix]]
            # the last word that has its first token there may be cut, so it is dropped
            num_words = min(max(word_ids) - len(prompt), num_words - 1)
            if num_words < 1:
                raise BadRequest(
                    f"the labels leave no room for the text: the limit is {max_tokens} tokens; send fewer labels",
                    param="labels",
                )
            encoding = self.raw.encode(
                [*prompt, *words.texts[:num_words]],
                is_pretokenized=True,
                add_special_tokens=spec.adds_special_tokens,
            )
            rows = _find_first_tokens(encoding)
        shift = 0 if self.spec.reads_label_token else 1
        first, last = len(spec.before_labels), len(prompt) - len(spec.after_labels)
        label_words = [*([] if spec.context_word is None else [spec.context_word]), *range(first, last, 2)]
        return LabelledText(
            text,
            spans[:num_words],
            np.array(encoding.ids, dtype=np.int32),
            [rows.get(len(prompt) + word, -1) for word in range(num_words)],
            [rows[word] + shift for word in label_words],
            len(spans) - num_words,
        )

    def _make_results(
        self,
        texts: Sequence[LabelledText],
        results: dict[int, PoolResult],
        labels: Sequence[str],
        ignore_labels: Sequence[str],
    ) -> list[EntityResult]:
        found = []
        for index, text in enumerate(texts):
            entities = self._select_entities(text, results[index], labels) if text.words else []
            num_tokens = len(text.token_ids)
            found.append(
                EntityResult(
                    [entity for entity in entities if entity.label not in ignore_labels],
                    text.token_ids,
                    num_tokens,
                    num_tokens + text.num_dropped_words,  # at least; words that are dropped are not tokenized
                    is_input_count_exact=not text.num_dropped_words,
                )
            )
        return found

    def _select_entities(self, text: LabelledText, result: PoolResult, labels: Sequence[str]) -> list[Entity]:
        rows = np.asarray(result.data).tolist()
        spans = [ScoredSpan(int(first), int(last), int(label), score) for first, last, label, score in rows]
        entities = []
        for first, last, label, score in select_spans(spans, self.spec):
            start, end = text.words[first][0], min(text.words[last][1], len(text.text))
            if start == end:
                continue  # the period that is not part of the text
            part = text.text[start:end]
            entities.append(Entity(label=labels[label], score=score, word=part, start=start, end=end, text=part))
        return entities


def _check_options(request: EntityRequest) -> tuple[list[str], float]:
    labels: Any = request.labels
    if not labels or isinstance(labels, str) or not all(isinstance(label, str) and label.strip() for label in labels):
        raise BadRequest(
            'labels must be a list of what to look for, for example ["person", "city"]: this model has none of its own',
            param="labels",
        )
    if request.aggregation_strategy != "simple":
        raise BadRequest("aggregation_strategy must be simple: this model scores spans", param="aggregation_strategy")
    if request.stride is not None:
        raise BadRequest("stride is not supported for this model; send long texts in parts", param="stride")
    if isinstance(request.ignore_labels, str):
        raise BadRequest(f'ignore_labels must be a list: ["{request.ignore_labels}"]', param="ignore_labels")
    tokenization = request.pool_request.tokenization
    if tokenization.truncation_side == "left" or tokenization.do_lower_case:
        raise BadRequest("truncation_side left and do_lower_case are not supported for this model", param="input")
    if not tokenization.add_special_tokens:
        raise BadRequest("add_special_tokens must be true: this model needs them", param="add_special_tokens")
    threshold: Any = DEFAULT_THRESHOLD if request.threshold is None else request.threshold
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise BadRequest(f"invalid threshold {threshold!r}; expected a number from 0 to 1", param="threshold")
    return list(dict.fromkeys(labels)), float(threshold)


def _find_first_tokens(encoding: Encoding) -> dict[int, int]:
    """Return the first token of every word that has one."""
    rows: dict[int, int] = {}
    for row, word in enumerate(encoding.word_ids):
        if word is not None:
            rows.setdefault(word, row)
    return rows
