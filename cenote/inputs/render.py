"""The single way from inputs to token ids: prompt, template, tokenizer, truncation, length checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cenote.errors import BadRequest, InputTooLong, PoolingError, Unsupported
from cenote.inputs.chat import ChatSettings, chat_text
from cenote.inputs.fitting import Framed, fitted
from cenote.inputs.instructions import Instruction
from cenote.inputs.limits import (
    ANY_LENGTH,
    Limits,
    check_length,
    padded_length,
    too_many_characters,
    wanted_length,
)
from cenote.inputs.markers import Side
from cenote.inputs.pairs import cut, join, joined_text
from cenote.inputs.plain import Plain
from cenote.inputs.ranking import DOCUMENT_MARK, QUERY_MARK, ranking_text
from cenote.inputs.strip import Integers, Rendered, Strip
from cenote.inputs.tokenizer import TokenIds, Tokenizer, check_ids, check_unicode, integers
from cenote.request import Chat, Embeds, Input, Pair, Ranking, Role, ScoreTemplate, Tokenization


@dataclass(frozen=True, slots=True)
class Rendering(Sequence[Rendered | PoolingError]):
    """Inputs that were rendered together: those that can be read, and the errors of the others."""

    strip: Strip
    places: Integers  # of what is in the strip, among all
    errors: Mapping[int, PoolingError]  # by their places

    @classmethod
    def of(cls, each: Sequence[Rendered | PoolingError]) -> Rendering:
        errors = {place: item for place, item in enumerate(each) if isinstance(item, PoolingError)}
        places = np.delete(np.arange(len(each)), list(errors)) if errors else np.arange(len(each))
        return cls(Strip.of([item for item in each if isinstance(item, Rendered)]), places, errors)

    def __len__(self) -> int:
        return len(self.places) + len(self.errors)

    def between(self, start: int, end: int) -> Rendering:
        """Of some neighbours."""
        if end - start == len(self):
            return self
        first, last = np.searchsorted(self.places, (start, end)).tolist()
        errors = {place - start: error for place, error in self.errors.items() if start <= place < end}
        return Rendering(self.strip.between(first, last), self.places[first:last] - start, errors)

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self.errors.get(place) or self.strip.rendered(int(np.searchsorted(self.places, place)))


class Renderer:
    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        hidden_size: int,
        pairs_with_separator: bool = True,
        score_template: ScoreTemplate | None = None,
        prompt_embeds: bool = False,
        skip_prompt: bool = False,
        chat: ChatSettings | None = None,
        sides: Mapping[Role, Side] | None = None,
        instruction: Instruction | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.pairs_with_separator = pairs_with_separator
        self.score_template = score_template  # joins the pairs that bring none
        self.prompt_embeds = prompt_embeds
        self.skip_prompt = skip_prompt
        self.chat = chat or ChatSettings()
        self.instruction = instruction  # of models whose prompts hold one that is not pooled
        self.sides = sides or {}  # of models that read queries and documents in different ways

    def render(
        self,
        inputs: Sequence[Input],
        how: Tokenization,
        limits: Limits,
        prompt: str | None = None,
        role: Role | None = None,
    ) -> Rendering:
        """All inputs at once where they are plain, else one by one: an input that cannot be read becomes its error."""
        side = self.sides.get(role or "document") if how.add_special_tokens else None
        try:
            max_tokens = wanted_length(how, limits)
            if (padded := padded_length(how, limits)) != how.pad_prompt_tokens:
                how = replace(how, pad_prompt_tokens=padded)
        except PoolingError as error:
            return Rendering.of([error] * len(inputs))
        if (strip := self._plain(inputs, how, limits, max_tokens, prompt, side)) is not None:
            return Rendering(strip, np.arange(len(inputs)), {})
        return Rendering.of(self._each(inputs, how, limits, max_tokens, prompt, side))

    def _plain(
        self,
        inputs: Sequence[Any],
        how: Tokenization,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        side: Side | None,
    ) -> Strip | None:
        """All at once; None where that cannot be done, or does not pay."""
        if len(inputs) == 1 or how.pad_prompt_tokens is not None or self.instruction is not None:
            return None
        plain, kinds = Plain(self.tokenizer, how, limits, max_tokens), set(map(type, inputs))
        if kinds == {str}:
            strip = plain.texts(inputs, prompt, skips_prompt=self.skip_prompt) if side is None else None
        elif kinds == {Pair}:
            own_way = self.score_template is not None or not self.pairs_with_separator
            strip = None if own_way or any(pair.template is not None for pair in inputs) else plain.pairs(inputs)
        else:
            strip = plain.token_ids(inputs, self.vocab_size)
        if strip is None or not strip.lengths.all():
            return None
        too_long = limits.bounded and strip.lengths.max() > limits.max_tokens
        unknown = self.tokenizer.max_token_id >= self.vocab_size and strip.token_ids.max() >= self.vocab_size
        return None if too_long or unknown else strip

    def _each(
        self,
        inputs: Sequence[Input],
        how: Tokenization,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        side: Side | None,
    ) -> list[Rendered | PoolingError]:
        plans: list[Callable[[dict[str, TokenIds]], Rendered] | PoolingError] = []
        texts: dict[str, None] = {}  # what must be tokenized, each text once
        for item in inputs:
            try:
                if isinstance(item, str) and side is not None:
                    plans.append(self._plan_side(item, side, how, limits, prompt, texts))
                else:
                    plans.append(self._plan(item, how, limits, max_tokens, prompt, texts))
            except PoolingError as error:
                plans.append(error)
        tokenized = dict(zip(texts, self.tokenizer.encode(list(texts), lower_case=how.do_lower_case), strict=True))
        return [plan if isinstance(plan, PoolingError) else self._finish(plan, tokenized, limits) for plan in plans]

    def tokenize(self, item: Input, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of an input of any length, even none."""
        how, texts = Tokenization(add_special_tokens=add_special_tokens), dict[str, None]()
        build = self._plan(item, how, ANY_LENGTH, None, None, texts)
        ids: list[int] = build(dict(zip(texts, self.tokenizer.encode(list(texts)), strict=True))).token_ids.tolist()
        return ids

    def _plan(
        self,
        item: Input,
        how: Tokenization,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        texts: dict[str, None],
    ) -> Callable[[dict[str, TokenIds]], Rendered]:
        """Note the texts to tokenize for an input; what comes back builds it from their ids."""
        if isinstance(item, Ranking):
            return self._plan_ranking(item, how, limits, max_tokens, texts)
        if isinstance(item, Pair) and (item.template is not None or self.score_template is not None):
            return self._plan_template(item, how, limits, max_tokens, texts)
        if isinstance(item, Pair) and not self.pairs_with_separator:
            item = joined_text(item)
        elif isinstance(item, Chat):
            item, prompt = chat_text(item, self.chat), None  # a prompt is for texts; a conversation has its template
        if isinstance(item, str):
            whole = prompt + item if prompt else item
            text = self._fitting(whole, how, limits, max_tokens)
            texts[text] = None
            if prompt and self.skip_prompt:
                texts[prompt] = None
            skipped, exact = prompt if self.skip_prompt else None, len(text) == len(whole)
            return lambda ids: self._single(ids[text], how, max_tokens, ids[skipped] if skipped else None, exact)
        if isinstance(item, Pair):
            query, document = (self._fitting(side, how, limits, max_tokens) for side in (item.query, item.document))
            texts[query] = texts[document] = None
            exact = len(query) + len(document) == len(item.query) + len(item.document)
            return lambda ids: self._pair(ids[query], ids[document], how, max_tokens, exact)
        if isinstance(item, Embeds):
            rendered = self._embeds(item, limits)
            return lambda ids: rendered
        given = self._token_ids(item)
        return lambda ids: self._sliced(given, how, max_tokens)

    def _plan_side(
        self,
        item: str,
        side: Side,
        how: Tokenization,
        limits: Limits,
        prompt: str | None,
        texts: dict[str, None],
    ) -> Callable[[dict[str, TokenIds]], Rendered]:
        """A text that is read as a query, or as a document."""
        limit = side.limit(how.truncate_prompt_tokens, limits.max_tokens)
        whole = side.text(item, prompt)
        text = self._fitting(whole, how, limits, limit)
        texts[text] = None
        exact = len(text) == len(whole)
        return lambda ids: self._marked(ids[text], side, how, limit, exact)

    def _marked(self, body: TokenIds, side: Side, how: Tokenization, limit: int, exact: bool) -> Rendered:
        frame, cut_side = self.tokenizer.single, how.truncation_side or self.tokenizer.truncation_side
        num_added = frame.num_tokens + side.num_markers
        kept = cut(body, max(0, limit - num_added), cut_side)
        ids = self._padded(side.marked(np.concatenate((frame.prefix, kept, frame.suffix))), how)
        expanded = side.expanded(cut(ids, limit, cut_side), limit)
        return Rendered(
            expanded.token_ids,
            len(expanded.token_ids),
            len(body) + num_added,
            input_tokens_exact=exact,
            attended=expanded.attended,
            kept=expanded.kept,
        )

    def _plan_template(
        self, pair: Pair, how: Tokenization, limits: Limits, max_tokens: int | None, texts: dict[str, None]
    ) -> Callable[[dict[str, TokenIds]], Rendered]:
        own = None if pair.template is not None else self.score_template
        if own is not None and not own.adds_special_tokens:
            how = replace(how, add_special_tokens=False)

        def write(query: str, documents: Sequence[str]) -> str:
            return joined_text(replace(pair, query=query, document=documents[0]), self.chat.special_tokens, own)

        return self._plan_framed(Framed(pair.query, [pair.document], write), how, limits, max_tokens, texts)

    def _plan_ranking(
        self, ranking: Ranking, how: Tokenization, limits: Limits, max_tokens: int | None, texts: dict[str, None]
    ) -> Callable[[dict[str, TokenIds]], Rendered]:
        found = (self.tokenizer.raw.token_to_id(mark) for mark in (DOCUMENT_MARK, QUERY_MARK))
        marks = [token for token in found if token is not None]
        if len(marks) < 2:
            raise Unsupported(f"the tokenizer has no token {DOCUMENT_MARK} or {QUERY_MARK}, which mark what is ranked")

        def write(query: str, documents: Sequence[str]) -> str:
            return ranking_text(query, documents, ranking.instruction)

        build = self._plan_framed(Framed(ranking.query, ranking.documents, write), how, limits, max_tokens, texts)

        def marked(ids: dict[str, TokenIds]) -> Rendered:
            rendered = build(ids)
            rendered.kept = np.isin(rendered.token_ids, marks)
            return rendered

        return marked

    def _plan_framed(
        self, framed: Framed, how: Tokenization, limits: Limits, max_tokens: int | None, texts: dict[str, None]
    ) -> Callable[[dict[str, TokenIds]], Rendered]:
        """A prompt that is cut inside, where its texts are: a model reads the answer off the end of its frame."""
        query, *documents = (self._fitting(text, how, limits, max_tokens) for text in (framed.query, *framed.documents))
        given = len(framed.query) + sum(map(len, framed.documents))
        exact = len(query) + sum(map(len, documents)) == given
        framed = replace(framed, query=query, documents=documents)
        whole = framed.write(query, documents)
        if max_tokens is None:
            self._fitting(whole, how, limits, None)
        else:
            padded = how.pad_prompt_tokens
            how = replace(how, pad_prompt_tokens=None if padded is None else min(padded, max_tokens))
        texts[whole] = None
        frame = self.tokenizer.single if how.add_special_tokens else self.tokenizer.single.bare

        def encode(text: str) -> TokenIds:
            return self.tokenizer.encode([text], lower_case=how.do_lower_case)[0]

        def build(ids: dict[str, TokenIds]) -> Rendered:
            body, total = ids[whole], len(ids[whole]) + frame.num_tokens
            if max_tokens is not None and total > max_tokens:
                side = how.truncation_side or self.tokenizer.truncation_side
                body = fitted(framed, encode, max_tokens - frame.num_tokens, self.tokenizer, side)
            rendered = self._single(body, how, None, None, exact)
            rendered.num_input_tokens = total
            return rendered

        return build

    def _fitting(self, text: str, how: Tokenization, limits: Limits, max_tokens: int | None) -> str:
        """The text, or as much of it as can matter: a huge one must not be tokenized only to be cut."""
        check_unicode(text)
        if max_tokens is None:
            most = limits.max_tokens * self.tokenizer.max_chars_per_token
            if limits.bounded and len(text) > most:
                raise InputTooLong(too_many_characters(limits, len(text), most), param="input_text", value=len(text))
            return text
        side = how.truncation_side or self.tokenizer.truncation_side
        return self.tokenizer.enough(text, max_tokens, side, lower_case=how.do_lower_case)

    def _single(
        self, body: TokenIds, how: Tokenization, max_tokens: int | None, prompt: TokenIds | None, exact: bool
    ) -> Rendered:
        frame = self.tokenizer.single if how.add_special_tokens else self.tokenizer.single.bare
        total = len(body) + frame.num_tokens
        if max_tokens is not None and total > max_tokens and how.truncation_side is None:
            body = cut(body, max(0, max_tokens - frame.num_tokens), self.tokenizer.truncation_side)
        ids = np.concatenate((frame.prefix, body, frame.suffix)) if frame.num_tokens else body
        ids = self._padded(ids, how)
        if max_tokens is not None and len(ids) > max_tokens:  # an explicit side cuts special tokens as well
            ids = cut(ids, max_tokens, how.truncation_side or self.tokenizer.truncation_side)
        skip = 0 if prompt is None else len(prompt) + len(frame.prefix)
        if (how.truncation_side or self.tokenizer.truncation_side) == "left":
            skip -= max(0, total - len(ids))  # the prompt is what was cut first
        return Rendered(ids, len(ids), total, skip=max(0, min(skip, len(ids) - 1)), input_tokens_exact=exact)

    def _pair(
        self, query: TokenIds, document: TokenIds, how: Tokenization, max_tokens: int | None, exact: bool
    ) -> Rendered:
        frame = self.tokenizer.pair if how.add_special_tokens else self.tokenizer.pair.bare
        side = how.truncation_side
        whole = max_tokens if side is None else None
        ids, second = join(frame, query, document, whole, self.tokenizer.truncation_side)
        ids = self._padded(ids, how)  # padding is of the type of what it follows
        second = second if frame.second_type else len(ids)
        total = len(query) + len(document) + frame.num_tokens
        if max_tokens is not None and len(ids) > max_tokens:
            lost = len(ids) - max_tokens if side == "left" else 0
            ids = cut(ids, max_tokens, side or self.tokenizer.truncation_side)
            second = min(max(second - lost, 0), len(ids))
        return Rendered(ids, second, total, input_tokens_exact=exact)

    def _sliced(self, given: TokenIds, how: Tokenization, max_tokens: int | None) -> Rendered:
        ids = self._padded(given, how)
        if max_tokens is not None:
            ids = cut(ids, max_tokens, how.truncation_side or self.tokenizer.truncation_side)
        return Rendered(ids, len(ids), len(given))

    def _padded(self, ids: TokenIds, how: Tokenization) -> TokenIds:
        if how.pad_prompt_tokens is None or len(ids) >= how.pad_prompt_tokens:
            return ids
        if self.tokenizer.pad_token_id is None:
            raise Unsupported("padding was asked for, but the tokenizer has no padding token", param="padding")
        return np.pad(ids, (0, how.pad_prompt_tokens - len(ids)), constant_values=self.tokenizer.pad_token_id)

    def _token_ids(self, given: Sequence[int]) -> TokenIds:
        ids = integers(given)
        if isinstance(given, list | tuple) and bool in set(map(type, given)):
            raise BadRequest("Token prompt should be a list of integers", param="input")
        check_ids(ids, self.vocab_size)
        return ids.astype(np.int32)

    def _embeds(self, item: Embeds, limits: Limits) -> Rendered:
        if not self.prompt_embeds:
            raise Unsupported("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", param="prompt_embeds")
        shape = tuple(item.rows.shape)
        if len(shape) != 2 or shape[1] != self.hidden_size:
            raise BadRequest(f"prompt_embeds has the shape {shape}, this model reads [tokens, {self.hidden_size}]")
        ids = np.zeros(shape[0], dtype=np.int32)
        return Rendered(ids, len(ids), len(ids), embeds=item.rows)

    def _finish(
        self, build: Callable[[dict[str, TokenIds]], Rendered], tokenized: dict[str, TokenIds], limits: Limits
    ) -> Rendered | PoolingError:
        try:
            rendered = build(tokenized)
            check_length(len(rendered.token_ids), limits)
        except PoolingError as error:
            return error
        if (
            self.tokenizer.max_token_id >= self.vocab_size
            and (worst := int(rendered.token_ids.max())) >= self.vocab_size
        ):
            return BadRequest(f"Token id {worst} is out of vocabulary: the model's table ends at {self.vocab_size - 1}")
        if self.instruction is not None and rendered.embeds is None:
            rendered.skip = self.instruction.num_tokens(rendered.token_ids)
        return rendered
