"""The single way from inputs to token ids: prompt, template, tokenizer, truncation, length checks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cenote.errors import BadRequest, InputTooLong, PoolingError, Unsupported
from cenote.inputs.bulk_renderer import BulkRenderer
from cenote.inputs.chat import ChatSettings, render_conversation
from cenote.inputs.colbert_format import RoleFormat
from cenote.inputs.content_parts import join_text_parts
from cenote.inputs.images.multimodal_processor import MultimodalProcessor
from cenote.inputs.instruction_mask import InstructionMask
from cenote.inputs.limits import (
    UNLIMITED,
    Limits,
    check_length,
    resolve_padding_length,
    resolve_truncation_length,
)
from cenote.inputs.listwise_prompt import DOCUMENT_TOKEN, QUERY_TOKEN, render_listwise_prompt
from cenote.inputs.pairs import render_pair
from cenote.inputs.sequence_builder import BuildFn, SequenceBuilder
from cenote.inputs.template_truncation import TemplatedTexts
from cenote.inputs.tokenized_inputs import RenderResult, TokenizedInput, TokenizedInputs
from cenote.inputs.tokenizer import TokenIds, Tokenizer, check_token_ids, to_id_array
from cenote.protocol.images import ProcessedImage
from cenote.protocol.input_types import (
    ContentParts,
    Conversation,
    Input,
    InvalidInput,
    ListwiseInput,
    MultimodalPair,
    MultimodalPrompt,
    PromptEmbeds,
    ScoreTemplate,
    TensorInput,
    TextPair,
)
from cenote.protocol.params import Role, TokenizationParams

logger = logging.getLogger("cenote")

# the token id that plugins written for the reference send beside tensors
TENSOR_INPUT_TOKEN_ID = 1


class Renderer:
    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        hidden_size: int,
        has_pair_separator: bool = True,
        score_template: ScoreTemplate | None = None,
        pair_suffix_ids: Sequence[int] = (),
        enable_prompt_embeds: bool = False,
        exclude_prompt: bool = False,
        chat_settings: ChatSettings | None = None,
        role_formats: Mapping[Role, RoleFormat] | None = None,
        instruction_mask: InstructionMask | None = None,
        multimodal: MultimodalProcessor | None = None,
        check_tensors: Callable[[Mapping[str, Any]], None] | None = None,
        architecture: str = "this model",
    ) -> None:
        self.tokenizer = tokenizer
        self.sequence_builder = SequenceBuilder(tokenizer)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.has_pair_separator = has_pair_separator
        self.score_template = score_template  # joins the pairs that bring none
        self.pair_suffix_ids = np.array(pair_suffix_ids, dtype=np.int32)  # behind what a template writes
        self.enable_prompt_embeds = enable_prompt_embeds
        self.exclude_prompt = exclude_prompt
        self.chat_settings = chat_settings or ChatSettings()
        self.instruction_mask = instruction_mask  # of models whose prompts hold one that is not pooled
        self.role_formats = role_formats or {}  # of models that read queries and documents in different ways
        self.multimodal = multimodal  # of models that read images
        self.check_tensors = check_tensors  # of models that read tensors and nothing else
        self.architecture = architecture  # its name in messages

    def render(
        self,
        inputs: Sequence[Input],
        tokenization: TokenizationParams,
        limits: Limits,
        prompt: str | None = None,
        role: Role | None = None,
    ) -> RenderResult:
        """All inputs at once where they are plain, else one by one: an input that cannot be read becomes its error."""
        side = self.role_formats.get(role or "document") if tokenization.add_special_tokens else None
        try:
            max_tokens = resolve_truncation_length(tokenization, limits)
            if (padded := resolve_padding_length(tokenization, limits)) != tokenization.pad_prompt_tokens:
                tokenization = replace(tokenization, pad_prompt_tokens=padded)
        except PoolingError as error:
            return RenderResult.from_list([error] * len(inputs))
        if (strip := self._render_bulk(inputs, tokenization, limits, max_tokens, prompt, side)) is not None:
            return RenderResult(strip, np.arange(len(inputs)), {})
        return RenderResult.from_list(self._render_individually(inputs, tokenization, limits, max_tokens, prompt, side))

    def _render_bulk(
        self,
        inputs: Sequence[Any],
        tokenization: TokenizationParams,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        role_format: RoleFormat | None,
    ) -> TokenizedInputs | None:
        """All at once; None where that cannot be done, or does not pay."""
        if len(inputs) == 1 or tokenization.pad_prompt_tokens is not None or self.instruction_mask is not None:
            return None
        if self.check_tensors is not None:
            return None
        plain, kinds = BulkRenderer(self.tokenizer, tokenization, limits, max_tokens), set(map(type, inputs))
        if kinds == {str}:
            strip = (
                plain.render_texts(inputs, prompt, exclude_prompt=self.exclude_prompt) if role_format is None else None
            )
        elif kinds == {TextPair}:
            own_way = self.score_template is not None or not self.has_pair_separator
            odd = own_way or any(pair.template is not None or pair.images for pair in inputs)
            strip = None if odd else plain.render_pairs(inputs)
        else:
            strip = plain.render_token_ids(inputs, self.vocab_size)
        if strip is None or not strip.lengths.all():
            return None
        too_long = limits.is_bounded and strip.lengths.max() > limits.max_tokens
        unknown = self.tokenizer.max_token_id >= self.vocab_size and strip.token_ids.max() >= self.vocab_size
        return None if too_long or unknown else strip

    def _render_individually(
        self,
        inputs: Sequence[Input],
        tokenization: TokenizationParams,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        role_format: RoleFormat | None,
    ) -> list[TokenizedInput | PoolingError]:
        plans: list[BuildFn | PoolingError] = []
        texts: dict[str, None] = {}  # what must be tokenized, each text once
        for item in inputs:
            try:
                plans.append(self._plan_input(item, tokenization, limits, max_tokens, prompt, texts, role_format))
            except Exception as error:
                plans.append(_to_input_error(error))
        tokenized = dict(
            zip(texts, self.tokenizer.encode(list(texts), lower_case=tokenization.do_lower_case), strict=True)
        )
        return [
            plan if isinstance(plan, PoolingError) else self._build_input(plan, tokenized, limits) for plan in plans
        ]

    def tokenize(self, item: Input, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of an input of any length, even none."""
        how, texts = TokenizationParams(add_special_tokens=add_special_tokens), dict[str, None]()
        build = self._plan_input(item, how, UNLIMITED, None, None, texts)
        ids: list[int] = build(dict(zip(texts, self.tokenizer.encode(list(texts)), strict=True))).token_ids.tolist()
        return ids

    def _plan_input(
        self,
        item: Input,
        tokenization: TokenizationParams,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        texts: dict[str, None],
        role_format: RoleFormat | None = None,
    ) -> BuildFn:
        """Any input, with images or without, as one side of a comparison or by itself."""
        if isinstance(item, InvalidInput):
            raise item.error
        if isinstance(item, TensorInput) or self.check_tensors is not None:
            rendered = self._build_tensors(item)
            return lambda ids: rendered
        item, pictures = self._split_images(item)
        if pictures:
            return self._plan_multimodal(item, pictures, tokenization, limits, max_tokens, prompt, texts)
        if isinstance(item, str) and role_format is not None:
            return self._plan_role(item, role_format, tokenization, limits, prompt, texts)
        return self._plan_without_images(item, tokenization, limits, max_tokens, prompt, texts)

    def _plan_without_images(
        self,
        item: Input,
        tokenization: TokenizationParams,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        texts: dict[str, None],
    ) -> BuildFn:
        """Note the texts to tokenize for an input; what comes back builds it from their ids."""
        read = self.sequence_builder
        if isinstance(item, ListwiseInput):
            return self._plan_listwise(item, tokenization, limits, max_tokens, texts)
        if isinstance(item, TextPair) and (item.template is not None or self.score_template is not None):
            return self._plan_pair_template(item, tokenization, limits, max_tokens, texts)
        if isinstance(item, TextPair) and not self.has_pair_separator:
            item = render_pair(item)
        elif isinstance(item, Conversation):
            tokenization = (
                replace(tokenization, add_special_tokens=True)
                if self.chat_settings.is_plain_text(item)
                else tokenization
            )
            item, prompt = (
                render_conversation(item, self.chat_settings),
                None,
            )  # a prompt is for texts; a conversation has its template
        if isinstance(item, str):
            whole = prompt + item if prompt else item
            text = read.crop_text(whole, tokenization, limits, max_tokens)
            texts[text] = None
            if prompt and self.exclude_prompt:
                texts[prompt] = None
            skipped, exact = prompt if self.exclude_prompt else None, len(text) == len(whole)
            return lambda ids: self.sequence_builder.build_single(
                ids[text], tokenization, max_tokens, ids[skipped] if skipped else None, exact
            )
        if isinstance(item, TextPair):
            query, document = (
                self.sequence_builder.crop_text(side, tokenization, limits, max_tokens)
                for side in (item.query, item.document)
            )
            texts[query] = texts[document] = None
            exact = len(query) + len(document) == len(item.query) + len(item.document)
            return lambda ids: read.build_pair(ids[query], ids[document], tokenization, max_tokens, exact)
        if isinstance(item, PromptEmbeds):
            rendered = self._build_embeds(item, limits)
            return lambda ids: rendered
        assert not isinstance(item, MultimodalPair | ContentParts | MultimodalPrompt | InvalidInput | TensorInput), (
            "these have become others by now"
        )
        given = self._check_token_ids(item)
        return lambda ids: read.build_from_ids(given, tokenization, max_tokens)

    def _split_images(self, item: Input) -> tuple[Input, Sequence[ProcessedImage]]:
        """The prompt of an input, and its images, which have been read."""
        if isinstance(item, Conversation | TextPair):
            return item, item.images
        if isinstance(item, ContentParts):  # of a model that reads nothing but text; others have read it by now
            return join_text_parts(item.content, item.param_path, self.architecture), ()
        if not isinstance(item, MultimodalPrompt | MultimodalPair):
            return item, ()
        if self.multimodal is None or isinstance(item, MultimodalPair):
            raise Unsupported("multi_modal_data was given, but this model reads text only", param="multi_modal_data")
        return item.prompt, [picture for picture in item.images if isinstance(picture, ProcessedImage)]

    def _plan_multimodal(
        self,
        item: Input,
        images: Sequence[ProcessedImage],
        tokenization: TokenizationParams,
        limits: Limits,
        max_tokens: int | None,
        prompt: str | None,
        texts: dict[str, None],
    ) -> BuildFn:
        """A prompt with images: where it is cut, its text is, and never an image."""
        assert self.multimodal is not None, "images are read by those that can"
        seeing, spec = self.multimodal, self.multimodal.image_processor.spec
        if spec.single_modality_name is not None:
            text = render_conversation(item, self.chat_settings) if isinstance(item, Conversation) else item
            seeing.check_single_modality(text if isinstance(text, str) else list(text), len(images))  # type: ignore[arg-type]
            return lambda ids: seeing.build_image_only(images[0])
        if max_tokens is not None:
            room = (
                max_tokens
                - sum(len(picture.token_ids) - 1 for picture in images)
                - seeing.image_processor.NUM_ADDED_TOKENS
            )
            if room < len(images):
                raise InputTooLong(
                    f"the images of this prompt are {max_tokens - room + len(images)} tokens, which leaves no room "
                    f"in {max_tokens}; an image is never cut: give fewer or smaller ones",
                    param="input_tokens",
                )
            max_tokens = room
        own = dict[str, None]()
        build = self._plan_without_images(
            item, replace(tokenization, pad_prompt_tokens=None), limits, max_tokens, prompt, own
        )
        marked = {text: seeing.image_processor.normalize_placeholders(text) for text in own}
        texts.update(dict.fromkeys(marked.values()))
        return lambda ids: seeing.expand_placeholders(build({text: ids[marked[text]] for text in own}), images)

    def _plan_role(
        self,
        item: str,
        role_format: RoleFormat,
        tokenization: TokenizationParams,
        limits: Limits,
        prompt: str | None,
        texts: dict[str, None],
    ) -> BuildFn:
        """A text that is read as a query, or as a document."""
        limit = role_format.resolve_max_tokens(tokenization.truncate_prompt_tokens, limits.max_tokens)
        whole = role_format.format_text(item, prompt)
        text = self.sequence_builder.crop_text(whole, tokenization, limits, limit)
        texts[text] = None
        exact = len(text) == len(whole)
        return lambda ids: self.sequence_builder.build_role(ids[text], role_format, tokenization, limit, exact)

    def _plan_pair_template(
        self,
        pair: TextPair,
        tokenization: TokenizationParams,
        limits: Limits,
        max_tokens: int | None,
        texts: dict[str, None],
    ) -> BuildFn:
        own = None if pair.template is not None else self.score_template
        if own is not None and not own.add_special_tokens:
            tokenization = replace(tokenization, add_special_tokens=False)

        def write(query: str, documents: Sequence[str]) -> str:
            text = render_pair(
                replace(pair, query=query, document=documents[0]), self.chat_settings.special_tokens, own
            )
            return (
                self.multimodal.image_processor.normalize_placeholders(text)
                if self.multimodal is not None and pair.images
                else text
            )

        framed, ending = TemplatedTexts(pair.query, [pair.document], write), self.pair_suffix_ids
        if not len(ending):
            return self.sequence_builder.build_templated(framed, tokenization, limits, max_tokens, texts)
        left = None if max_tokens is None else max(0, max_tokens - len(ending))
        if (padded := tokenization.pad_prompt_tokens) is not None:
            tokenization = replace(tokenization, pad_prompt_tokens=padded - len(ending))
        build = self.sequence_builder.build_templated(framed, tokenization, limits, left, texts)

        def ended(ids: dict[str, TokenIds]) -> TokenizedInput:
            rendered = build(ids)
            token_ids = np.concatenate((rendered.token_ids, ending))
            total = rendered.num_input_tokens + len(ending)
            return replace(rendered, token_ids=token_ids, type1_start=len(token_ids), num_input_tokens=total)

        return ended

    def _plan_listwise(
        self,
        listwise: ListwiseInput,
        tokenization: TokenizationParams,
        limits: Limits,
        max_tokens: int | None,
        texts: dict[str, None],
    ) -> BuildFn:
        found = (self.tokenizer.raw.token_to_id(mark) for mark in (DOCUMENT_TOKEN, QUERY_TOKEN))
        marks = [token for token in found if token is not None]
        if len(marks) < 2:
            raise Unsupported(
                f"the tokenizer has no token {DOCUMENT_TOKEN} or {QUERY_TOKEN}, which mark what is ranked"
            )

        def write(query: str, documents: Sequence[str]) -> str:
            return render_listwise_prompt(query, documents, listwise.instruction)

        build = self.sequence_builder.build_templated(
            TemplatedTexts(listwise.query, listwise.documents, write), tokenization, limits, max_tokens, texts
        )

        def marked(ids: dict[str, TokenIds]) -> TokenizedInput:
            rendered = build(ids)
            rendered.row_mask = np.isin(rendered.token_ids, marks)
            return rendered

        return marked

    def _check_token_ids(self, token_ids: Sequence[int]) -> TokenIds:
        ids = to_id_array(token_ids)
        if isinstance(token_ids, list | tuple) and bool in set(map(type, token_ids)):
            raise BadRequest("Token prompt should be a list of integers", param="input")
        check_token_ids(ids, self.vocab_size)
        return ids.astype(np.int32)

    def _build_embeds(self, item: PromptEmbeds, limits: Limits) -> TokenizedInput:
        if not self.enable_prompt_embeds:
            raise Unsupported("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", param="prompt_embeds")
        shape = tuple(item.embeds.shape)
        if len(shape) != 2 or shape[1] != self.hidden_size:
            raise BadRequest(f"prompt_embeds has the shape {shape}, this model reads [tokens, {self.hidden_size}]")
        ids = np.zeros(shape[0], dtype=np.int32)
        return TokenizedInput(ids, len(ids), len(ids), inputs_embeds=item.embeds)

    def _build_tensors(self, item: Input) -> TokenizedInput:
        if self.check_tensors is None:
            raise Unsupported(
                f"multi_modal_data.image has tensors by name, and {self.architecture} reads tokens; those tensors are "
                "for models that come with an IO processor plugin",
                param="multi_modal_data",
            )
        if not isinstance(item, TensorInput):
            raise Unsupported(
                f"{self.architecture} reads tensors, which its IO processor plugin makes of `data`; it reads no text"
            )
        self.check_tensors(item.tensors)
        return TokenizedInput(np.array([TENSOR_INPUT_TOKEN_ID], dtype=np.int32), 1, 1, inputs_embeds=item.tensors)

    def _check_length(self, tokenized: TokenizedInput, limits: Limits) -> None:
        if tokenized.images is not None and self.multimodal is not None:
            if self.multimodal.image_processor.spec.single_modality_name is not None:
                return  # as long as the tower of images makes it, whatever holds for texts
            if limits.is_chunked:  # which is for texts: what has an image is never split
                limits = Limits(self.multimodal.image_processor.max_tokens)
        check_length(len(tokenized.token_ids), limits)

    def _build_input(
        self, build: BuildFn, ids_by_text: dict[str, TokenIds], limits: Limits
    ) -> TokenizedInput | PoolingError:
        try:
            rendered = build(ids_by_text)
            self._check_length(rendered, limits)
        except Exception as error:
            return _to_input_error(error)
        if (
            self.tokenizer.max_token_id >= self.vocab_size
            and (worst := int(rendered.token_ids.max())) >= self.vocab_size
        ):
            return BadRequest(f"Token id {worst} is out of vocabulary: the model's table ends at {self.vocab_size - 1}")
        if self.instruction_mask is not None and rendered.inputs_embeds is None:
            rendered.num_unpooled = self.instruction_mask.count_masked_tokens(rendered.token_ids)
        return rendered


def _to_input_error(error: Exception) -> PoolingError:
    """What one input gets for it; the others, of other people perhaps, are read."""
    if isinstance(error, PoolingError):
        return error
    logger.error("an input could not be read", exc_info=error)
    return PoolingError(f"the input could not be read: {type(error).__name__}: {error}")
