"""The single way from inputs to token ids: prompt, template, tokenizer, truncation, length checks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cenote.errors import BadRequest, InputTooLong, PoolingError, Unsupported
from cenote.inputs.bulk_renderer import Plain
from cenote.inputs.chat import ChatSettings, chat_text
from cenote.inputs.colbert_format import Side
from cenote.inputs.content_parts import plain_text
from cenote.inputs.images.multimodal_processor import Seeing
from cenote.inputs.instruction_mask import Instruction
from cenote.inputs.limits import (
    ANY_LENGTH,
    Limits,
    check_length,
    padded_length,
    wanted_length,
)
from cenote.inputs.listwise_prompt import DOCUMENT_MARK, QUERY_MARK, ranking_text
from cenote.inputs.pairs import joined_text
from cenote.inputs.sequence_builder import Build, Sequences
from cenote.inputs.template_truncation import Framed
from cenote.inputs.tokenized_inputs import Rendered, Rendering, Strip
from cenote.inputs.tokenizer import TokenIds, Tokenizer, check_ids, integers
from cenote.protocol.images import Picture
from cenote.protocol.input_types import (
    Chat,
    Embeds,
    Input,
    Pair,
    Parts,
    PartsPair,
    Pictured,
    Ranking,
    Refused,
    ScoreTemplate,
    Tensors,
)
from cenote.protocol.requests import Role, Tokenization

logger = logging.getLogger("cenote")

# the token id that plugins written for the reference send beside tensors
STANDS_FOR_TENSORS = 1


class Renderer:
    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        hidden_size: int,
        pairs_with_separator: bool = True,
        score_template: ScoreTemplate | None = None,
        pair_ending: Sequence[int] = (),
        prompt_embeds: bool = False,
        skip_prompt: bool = False,
        chat: ChatSettings | None = None,
        sides: Mapping[Role, Side] | None = None,
        instruction: Instruction | None = None,
        seeing: Seeing | None = None,
        check_tensors: Callable[[Mapping[str, Any]], None] | None = None,
        architecture: str = "this model",
    ) -> None:
        self.tokenizer = tokenizer
        self.sequences = Sequences(tokenizer)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.pairs_with_separator = pairs_with_separator
        self.score_template = score_template  # joins the pairs that bring none
        self.pair_ending = np.array(pair_ending, dtype=np.int32)  # behind what a template writes
        self.prompt_embeds = prompt_embeds
        self.skip_prompt = skip_prompt
        self.chat = chat or ChatSettings()
        self.instruction = instruction  # of models whose prompts hold one that is not pooled
        self.sides = sides or {}  # of models that read queries and documents in different ways
        self.seeing = seeing  # of models that read images
        self.check_tensors = check_tensors  # of models that read tensors and nothing else
        self.architecture = architecture  # its name in messages

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
        if self.check_tensors is not None:
            return None
        plain, kinds = Plain(self.tokenizer, how, limits, max_tokens), set(map(type, inputs))
        if kinds == {str}:
            strip = plain.texts(inputs, prompt, skips_prompt=self.skip_prompt) if side is None else None
        elif kinds == {Pair}:
            own_way = self.score_template is not None or not self.pairs_with_separator
            odd = own_way or any(pair.template is not None or pair.pictures for pair in inputs)
            strip = None if odd else plain.pairs(inputs)
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
        plans: list[Build | PoolingError] = []
        texts: dict[str, None] = {}  # what must be tokenized, each text once
        for item in inputs:
            try:
                plans.append(self._planned(item, how, limits, max_tokens, prompt, texts, side))
            except Exception as error:
                plans.append(_its_own(error))
        tokenized = dict(zip(texts, self.tokenizer.encode(list(texts), lower_case=how.do_lower_case), strict=True))
        return [plan if isinstance(plan, PoolingError) else self._finish(plan, tokenized, limits) for plan in plans]

    def tokenize(self, item: Input, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of an input of any length, even none."""
        how, texts = Tokenization(add_special_tokens=add_special_tokens), dict[str, None]()
        build = self._planned(item, how, ANY_LENGTH, None, None, texts)
        ids: list[int] = build(dict(zip(texts, self.tokenizer.encode(list(texts)), strict=True))).token_ids.tolist()
        return ids

    def _planned(
        self,
        item: Input,
        how: Tokenization,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        texts: dict[str, None],
        side: Side | None = None,
    ) -> Build:
        """Any input, with images or without, as one side of a comparison or by itself."""
        if isinstance(item, Refused):
            raise item.error
        if isinstance(item, Tensors) or self.check_tensors is not None:
            rendered = self._tensors(item)
            return lambda ids: rendered
        item, pictures = self._without_pictures(item)
        if pictures:
            return self._plan_pictured(item, pictures, how, limits, max_tokens, prompt, texts)
        if isinstance(item, str) and side is not None:
            return self._plan_side(item, side, how, limits, prompt, texts)
        return self._plan(item, how, limits, max_tokens, prompt, texts)

    def _plan(
        self,
        item: Input,
        how: Tokenization,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        texts: dict[str, None],
    ) -> Build:
        """Note the texts to tokenize for an input; what comes back builds it from their ids."""
        read = self.sequences
        if isinstance(item, Ranking):
            return self._plan_ranking(item, how, limits, max_tokens, texts)
        if isinstance(item, Pair) and (item.template is not None or self.score_template is not None):
            return self._plan_template(item, how, limits, max_tokens, texts)
        if isinstance(item, Pair) and not self.pairs_with_separator:
            item = joined_text(item)
        elif isinstance(item, Chat):
            how = replace(how, add_special_tokens=True) if self.chat.is_text(item) else how
            item, prompt = chat_text(item, self.chat), None  # a prompt is for texts; a conversation has its template
        if isinstance(item, str):
            whole = prompt + item if prompt else item
            text = read.fitting(whole, how, limits, max_tokens)
            texts[text] = None
            if prompt and self.skip_prompt:
                texts[prompt] = None
            skipped, exact = prompt if self.skip_prompt else None, len(text) == len(whole)
            return lambda ids: self.sequences.single(
                ids[text], how, max_tokens, ids[skipped] if skipped else None, exact
            )
        if isinstance(item, Pair):
            query, document = (
                self.sequences.fitting(side, how, limits, max_tokens) for side in (item.query, item.document)
            )
            texts[query] = texts[document] = None
            exact = len(query) + len(document) == len(item.query) + len(item.document)
            return lambda ids: read.pair(ids[query], ids[document], how, max_tokens, exact)
        if isinstance(item, Embeds):
            rendered = self._embeds(item, limits)
            return lambda ids: rendered
        assert not isinstance(item, PartsPair | Parts | Pictured | Refused | Tensors), "these have become others by now"
        given = self._token_ids(item)
        return lambda ids: read.sliced(given, how, max_tokens)

    def _without_pictures(self, item: Input) -> tuple[Input, Sequence[Picture]]:
        """The prompt of an input, and its images, which have been read."""
        if isinstance(item, Chat | Pair):
            return item, item.pictures
        if isinstance(item, Parts):  # of a model that reads nothing but text; others have read it by now
            return plain_text(item.content, item.where, self.architecture), ()
        if not isinstance(item, Pictured | PartsPair):
            return item, ()
        if self.seeing is None or isinstance(item, PartsPair):
            raise Unsupported("multi_modal_data was given, but this model reads text only", param="multi_modal_data")
        return item.prompt, [picture for picture in item.images if isinstance(picture, Picture)]

    def _plan_pictured(
        self,
        item: Input,
        pictures: Sequence[Picture],
        how: Tokenization,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        texts: dict[str, None],
    ) -> Build:
        """A prompt with images: where it is cut, its text is, and never an image."""
        assert self.seeing is not None, "images are read by those that can"
        seeing, spec = self.seeing, self.seeing.reader.spec
        if spec.alone is not None:
            text = chat_text(item, self.chat) if isinstance(item, Chat) else item
            seeing.check_alone(text if isinstance(text, str) else list(text), len(pictures))  # type: ignore[arg-type]
            return lambda ids: seeing.by_itself(pictures[0])
        if max_tokens is not None:
            room = max_tokens - sum(len(picture.token_ids) - 1 for picture in pictures) - seeing.reader.NUM_ADDED
            if room < len(pictures):
                raise InputTooLong(
                    f"the images of this prompt are {max_tokens - room + len(pictures)} tokens, which leaves no room "
                    f"in {max_tokens}; an image is never cut: give fewer or smaller ones",
                    param="input_tokens",
                )
            max_tokens = room
        own = dict[str, None]()
        build = self._plan(item, replace(how, pad_prompt_tokens=None), limits, max_tokens, prompt, own)
        marked = {text: seeing.reader.marked(text) for text in own}
        texts.update(dict.fromkeys(marked.values()))
        return lambda ids: seeing.expanded(build({text: ids[marked[text]] for text in own}), pictures)

    def _plan_side(
        self,
        item: str,
        side: Side,
        how: Tokenization,
        limits: Limits,
        prompt: str | None,
        texts: dict[str, None],
    ) -> Build:
        """A text that is read as a query, or as a document."""
        limit = side.limit(how.truncate_prompt_tokens, limits.max_tokens)
        whole = side.text(item, prompt)
        text = self.sequences.fitting(whole, how, limits, limit)
        texts[text] = None
        exact = len(text) == len(whole)
        return lambda ids: self.sequences.marked(ids[text], side, how, limit, exact)

    def _plan_template(
        self, pair: Pair, how: Tokenization, limits: Limits, max_tokens: int | None, texts: dict[str, None]
    ) -> Build:
        own = None if pair.template is not None else self.score_template
        if own is not None and not own.adds_special_tokens:
            how = replace(how, add_special_tokens=False)

        def write(query: str, documents: Sequence[str]) -> str:
            text = joined_text(replace(pair, query=query, document=documents[0]), self.chat.special_tokens, own)
            return self.seeing.reader.marked(text) if self.seeing is not None and pair.pictures else text

        framed, ending = Framed(pair.query, [pair.document], write), self.pair_ending
        if not len(ending):
            return self.sequences.framed(framed, how, limits, max_tokens, texts)
        left = None if max_tokens is None else max(0, max_tokens - len(ending))
        if (padded := how.pad_prompt_tokens) is not None:
            how = replace(how, pad_prompt_tokens=padded - len(ending))
        build = self.sequences.framed(framed, how, limits, left, texts)

        def ended(ids: dict[str, TokenIds]) -> Rendered:
            rendered = build(ids)
            token_ids = np.concatenate((rendered.token_ids, ending))
            total = rendered.num_input_tokens + len(ending)
            return replace(rendered, token_ids=token_ids, second_start=len(token_ids), num_input_tokens=total)

        return ended

    def _plan_ranking(
        self, ranking: Ranking, how: Tokenization, limits: Limits, max_tokens: int | None, texts: dict[str, None]
    ) -> Build:
        found = (self.tokenizer.raw.token_to_id(mark) for mark in (DOCUMENT_MARK, QUERY_MARK))
        marks = [token for token in found if token is not None]
        if len(marks) < 2:
            raise Unsupported(f"the tokenizer has no token {DOCUMENT_MARK} or {QUERY_MARK}, which mark what is ranked")

        def write(query: str, documents: Sequence[str]) -> str:
            return ranking_text(query, documents, ranking.instruction)

        build = self.sequences.framed(Framed(ranking.query, ranking.documents, write), how, limits, max_tokens, texts)

        def marked(ids: dict[str, TokenIds]) -> Rendered:
            rendered = build(ids)
            rendered.kept = np.isin(rendered.token_ids, marks)
            return rendered

        return marked

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

    def _tensors(self, item: Input) -> Rendered:
        if self.check_tensors is None:
            raise Unsupported(
                f"multi_modal_data.image has tensors by name, and {self.architecture} reads tokens; those tensors are "
                "for models that come with an IO processor plugin",
                param="multi_modal_data",
            )
        if not isinstance(item, Tensors):
            raise Unsupported(
                f"{self.architecture} reads tensors, which its IO processor plugin makes of `data`; it reads no text"
            )
        self.check_tensors(item.values)
        return Rendered(np.array([STANDS_FOR_TENSORS], dtype=np.int32), 1, 1, embeds=item.values)

    def _check_length(self, rendered: Rendered, limits: Limits) -> None:
        if rendered.sight is not None and self.seeing is not None:
            if self.seeing.reader.spec.alone is not None:
                return  # as long as the tower of images makes it, whatever holds for texts
            if limits.chunked:  # which is for texts: what has an image is never split
                limits = Limits(self.seeing.reader.max_tokens)
        check_length(len(rendered.token_ids), limits)

    def _finish(self, build: Build, tokenized: dict[str, TokenIds], limits: Limits) -> Rendered | PoolingError:
        try:
            rendered = build(tokenized)
            self._check_length(rendered, limits)
        except Exception as error:
            return _its_own(error)
        if (
            self.tokenizer.max_token_id >= self.vocab_size
            and (worst := int(rendered.token_ids.max())) >= self.vocab_size
        ):
            return BadRequest(f"Token id {worst} is out of vocabulary: the model's table ends at {self.vocab_size - 1}")
        if self.instruction is not None and rendered.embeds is None:
            rendered.skip = self.instruction.num_tokens(rendered.token_ids)
        return rendered


def _its_own(error: Exception) -> PoolingError:
    """What one input gets for it; the others, of other people perhaps, are read."""
    if isinstance(error, PoolingError):
        return error
    logger.error("an input could not be read", exc_info=error)
    return PoolingError(f"the input could not be read: {type(error).__name__}: {error}")
