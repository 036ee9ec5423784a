"""Plan the rendering of one input: collect the texts to tokenize, and return a function that builds it from their ids.

Texts of many inputs are collected first, so that the tokenizer encodes them in one call and each text once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from cenote.errors import BadRequest, InputTooLong, Unsupported
from cenote.inputs.chat import render_conversation
from cenote.inputs.chunked_document import plan_document
from cenote.inputs.colbert_format import RoleFormat
from cenote.inputs.content_parts import join_text_parts
from cenote.inputs.decoder_pairs import DecoderPairs
from cenote.inputs.formatted_pairs import FormattedPair, log_formatted, make_pair_format
from cenote.inputs.listwise_prompt import DOCUMENT_TOKEN, QUERY_TOKEN, render_listwise_prompt
from cenote.inputs.pairs import render_pair
from cenote.inputs.sequence_builder import BuildFn, RenderOptions, SequenceBuilder
from cenote.inputs.template_truncation import TemplatedTexts
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import TokenIds, Tokenizer, check_token_ids, to_id_array
from cenote.protocol.images import ProcessedImage
from cenote.protocol.input_types import (
    ChunkedDocument,
    ContentParts,
    Conversation,
    Input,
    InvalidInput,
    ListwiseInput,
    MultimodalPair,
    MultimodalPrompt,
    PromptEmbeds,
    TensorInput,
    TextPair,
)

if TYPE_CHECKING:  # imports Pillow, which models of texts do without
    from cenote.inputs.images.multimodal_processor import MultimodalProcessor
    from cenote.inputs.renderer_settings import RendererSettings

# vLLM plugins send this token id together with tensors
TENSOR_INPUT_TOKEN_ID = 1

# the texts to tokenize, each once, in the order in which they were added
TextSet: TypeAlias = dict[str, None]


class InputPlanner:
    """Hold the tokenizer and the input settings of a model, and plan single inputs of every type."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: RendererSettings,
        multimodal: MultimodalProcessor | None = None,
        check_tensors: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """`multimodal`: made of the settings of that name, with a loader. `check_tensors`: in the engine's process."""
        self.tokenizer = tokenizer
        self.settings = settings
        self.multimodal = multimodal
        self.check_tensors = check_tensors
        self.sequence_builder = SequenceBuilder(tokenizer)
        special_tokens = settings.chat_settings.special_tokens
        self.pair_suffix_ids = np.array(settings.pair_suffix_ids, dtype=np.int32)
        self.pair_format = make_pair_format(settings.score_template, special_tokens)
        self.instruction_mask = settings.make_instruction_mask(tokenizer)
        self.decoder_pairs = (
            None if settings.pair_lengths is None else DecoderPairs(tokenizer, settings.pair_lengths, special_tokens)
        )

    @property
    def text_model(self) -> str | None:
        """The model that embeds texts, if this one reads images only."""
        return None if self.multimodal is None else self.multimodal.image_processor.spec.text_model

    def plan_input(self, item: Input, options: RenderOptions, texts: TextSet) -> BuildFn:
        """Add the texts of an input to `texts` and return the function that builds the input from their ids."""
        if isinstance(item, InvalidInput):
            raise item.error
        if isinstance(item, TensorInput) or self.settings.reads_tensors:
            tokenized = self._build_tensors(item)
            return lambda ids: tokenized
        item, images = self._split_images(item)
        if images:
            return self._plan_multimodal(item, images, options, texts)
        if (text_model := self.text_model) is not None:
            raise Unsupported(
                f"{self.settings.architecture} reads images only; embed texts with {text_model}, which has the same "
                "vector space"
            )
        if isinstance(item, str) and options.role_format is not None:
            return self._plan_role(item, options.role_format, options, texts)
        return self._plan_without_images(item, options, texts)

    def _plan_without_images(self, item: Input, options: RenderOptions, texts: TextSet) -> BuildFn:
        if isinstance(item, str):
            return self._plan_text(item, options, texts)
        if isinstance(item, ListwiseInput):
            return self._plan_listwise(item, options, texts)
        if isinstance(item, ChunkedDocument):
            return self._plan_document(item, options, texts)
        if isinstance(item, TextPair) and self.decoder_pairs is not None:
            return self.decoder_pairs.plan(item, self.settings.score_template, options, texts)
        if isinstance(item, TextPair) and (item.template is not None or self.settings.score_template is not None):
            return self._plan_pair_template(item, options, texts)
        if isinstance(item, TextPair) and not self.settings.has_pair_separator:
            item = render_pair(item)
        elif isinstance(item, Conversation):
            if self.settings.chat_settings.is_plain_text(item):
                options = options._replace(tokenization=replace(options.tokenization, add_special_tokens=True))
            item = render_conversation(item, self.settings.chat_settings)
            options = options._replace(prompt=None)  # prompts are for texts; a conversation has its template
        if isinstance(item, str):
            return self._plan_text(item, options, texts)
        builder = self.sequence_builder
        if isinstance(item, TextPair):
            query, document = (builder.crop_text(text, options) for text in (item.query, item.document))
            texts[query] = texts[document] = None
            is_exact = len(query) + len(document) == len(item.query) + len(item.document)
            return lambda ids: builder.build_pair(ids[query], ids[document], options, is_exact=is_exact)
        if isinstance(item, PromptEmbeds):
            tokenized = self._build_embeds(item)
            return lambda ids: tokenized
        assert not isinstance(item, MultimodalPair | ContentParts | MultimodalPrompt | InvalidInput | TensorInput), (
            "plan_input has converted these types"
        )
        token_ids = self._check_token_ids(item)
        return lambda ids: builder.build_from_ids(token_ids, options)

    def _plan_text(self, item: str, options: RenderOptions, texts: TextSet) -> BuildFn:
        prompt = options.prompt
        if self.settings.text_format is not None and options.tokenization.add_special_tokens:
            full_text = self.settings.text_format.apply(item, prompt)
        else:
            full_text = prompt + item if prompt else item
        text = self.sequence_builder.crop_text(full_text, options)
        texts[text] = None
        excluded_prompt = prompt if self.settings.exclude_prompt else None
        if excluded_prompt:
            texts[excluded_prompt] = None
        is_exact = len(text) == len(full_text)
        return lambda ids: self.sequence_builder.build_single(
            ids[text], options, ids[excluded_prompt] if excluded_prompt else None, is_exact=is_exact
        )

    def _plan_document(self, document: ChunkedDocument, options: RenderOptions, texts: TextSet) -> BuildFn:
        if self.settings.text_format is not None and options.tokenization.add_special_tokens:
            raise Unsupported(
                f"late_chunking is not supported: {self.settings.architecture} writes every text into a format of its "
                "own; embed the chunks one by one",
                param="late_chunking",
            )
        return plan_document(
            self.sequence_builder, document, options, texts, exclude_prompt=self.settings.exclude_prompt
        )

    def _split_images(self, item: Input) -> tuple[Input, Sequence[ProcessedImage]]:
        """Return the input without its images, and its processed images."""
        if isinstance(item, str):
            return item, ()
        if isinstance(item, Conversation | TextPair):
            return item, item.images
        if isinstance(item, ContentParts):  # only for text models: a multimodal processor has converted them otherwise
            return join_text_parts(item.content, item.param_path, self.settings.architecture), ()
        if not isinstance(item, MultimodalPrompt | MultimodalPair):
            return item, ()
        if self.multimodal is None or isinstance(item, MultimodalPair):
            raise Unsupported("multi_modal_data was given, but this model reads text only", param="multi_modal_data")
        return item.prompt, [image for image in item.images if isinstance(image, ProcessedImage)]

    def _plan_multimodal(
        self, item: Input, images: Sequence[ProcessedImage], options: RenderOptions, texts: TextSet
    ) -> BuildFn:
        """Plan a prompt with images. Truncation removes text only, never a part of an image."""
        assert self.multimodal is not None, "only a multimodal processor makes processed images"
        multimodal, processor = self.multimodal, self.multimodal.image_processor
        if processor.spec.single_modality_name is not None:
            text = render_conversation(item, self.settings.chat_settings) if isinstance(item, Conversation) else item
            multimodal.check_single_modality(text if isinstance(text, str) else list(text), len(images))  # type: ignore[arg-type]
            return lambda ids: multimodal.build_image_only(images[0])
        max_tokens = options.max_tokens
        if max_tokens is not None:
            budget = max_tokens - sum(len(image.token_ids) - 1 for image in images) - processor.NUM_ADDED_TOKENS
            if budget < len(images):
                raise InputTooLong(
                    f"the images of this prompt are {max_tokens - budget + len(images)} tokens, which do not fit in "
                    f"{max_tokens}; images are never truncated: send fewer or smaller ones",
                    param="input_tokens",
                )
            max_tokens = budget
        # prompts of such a model are for texts without images
        if processor.spec.image_prompt is not None and self.settings.text_format is None:
            options = options._replace(prompt=None)
        tokenization = replace(options.tokenization, pad_prompt_tokens=None)
        if processor.spec.has_special_tokens:
            tokenization = replace(tokenization, add_special_tokens=True)
        text_options = options._replace(tokenization=tokenization, max_tokens=max_tokens)
        own_texts = TextSet()
        build = self._plan_without_images(item, text_options, own_texts)
        normalized = {text: processor.normalize_placeholders(text) for text in own_texts}
        texts.update(dict.fromkeys(normalized.values()))
        return lambda ids: multimodal.expand_placeholders(
            build({text: ids[normalized[text]] for text in own_texts}), images
        )

    def _plan_role(self, item: str, role_format: RoleFormat, options: RenderOptions, texts: TextSet) -> BuildFn:
        """Plan a text in the query or document format of a ColBERT model."""
        requested = options.tokenization.truncate_prompt_tokens
        max_tokens = role_format.resolve_max_tokens(requested, options.limits.max_tokens)
        full_text = role_format.format_text(item, options.prompt)
        text = self.sequence_builder.crop_text(full_text, options._replace(max_tokens=max_tokens))
        texts[text] = None
        is_exact = len(text) == len(full_text)
        return lambda ids: self.sequence_builder.build_role(
            ids[text], role_format, options, max_tokens, is_exact=is_exact
        )

    def _plan_pair_template(self, pair: TextPair, options: RenderOptions, texts: TextSet) -> BuildFn:
        default_template = None if pair.template is not None else self.settings.score_template
        if default_template is not None and not default_template.add_special_tokens:
            options = options._replace(tokenization=replace(options.tokenization, add_special_tokens=False))
        formatted = self._split_formatted(pair)

        def render(query: str, documents: Sequence[str]) -> str:
            if formatted is not None:
                text = formatted.join(query, documents[0])
            else:
                new_pair = replace(pair, query=query, document=documents[0])
                text = render_pair(new_pair, self.settings.chat_settings.special_tokens, default_template)
            if self.multimodal is not None and pair.images:
                return self.multimodal.image_processor.normalize_placeholders(text)
            return text

        query, document = (
            (pair.query, pair.document) if formatted is None else (formatted.query.text, formatted.document.text)
        )
        templated, suffix = TemplatedTexts(query, [document], render), self.pair_suffix_ids
        if not len(suffix):
            return self.sequence_builder.build_templated(templated, options, texts)
        if options.max_tokens is not None:
            options = options._replace(max_tokens=max(0, options.max_tokens - len(suffix)))
        if (padded := options.tokenization.pad_prompt_tokens) is not None:
            shorter = replace(options.tokenization, pad_prompt_tokens=padded - len(suffix))
            options = options._replace(tokenization=shorter)
        build = self.sequence_builder.build_templated(templated, options, texts)

        def build_with_suffix(ids: dict[str, TokenIds]) -> TokenizedInput:
            tokenized = build(ids)
            token_ids = np.concatenate((tokenized.token_ids, suffix))
            num_input_tokens = tokenized.num_input_tokens + len(suffix)
            return replace(
                tokenized, token_ids=token_ids, type1_start=len(token_ids), num_input_tokens=num_input_tokens
            )

        return build_with_suffix

    def _split_formatted(self, pair: TextPair) -> FormattedPair | None:
        """Return the parts of a pair that already contains the model's score template; None for a plain pair."""
        if pair.template is not None or self.pair_format is None:
            return None
        formatted = self.pair_format.split(pair.query, pair.document)
        if formatted is None:
            self.pair_format.check_plain(pair.query)
        else:
            self.pair_format.check_instruction(pair.template_kwargs)
            log_formatted(self.pair_format.template.name)
        return formatted

    def _plan_listwise(self, listwise: ListwiseInput, options: RenderOptions, texts: TextSet) -> BuildFn:
        found_ids = [self.tokenizer.raw.token_to_id(marker) for marker in (DOCUMENT_TOKEN, QUERY_TOKEN)]
        marker_ids = [token_id for token_id in found_ids if token_id is not None]
        if len(marker_ids) < len(found_ids):
            raise Unsupported(
                f"the tokenizer has no token {DOCUMENT_TOKEN} or {QUERY_TOKEN}, which listwise reranking needs"
            )

        def render(query: str, documents: Sequence[str]) -> str:
            return render_listwise_prompt(query, documents, listwise.instruction)

        templated = TemplatedTexts(listwise.query, listwise.documents, render)
        build = self.sequence_builder.build_templated(templated, options, texts)

        def build_with_row_mask(ids: dict[str, TokenIds]) -> TokenizedInput:
            tokenized = build(ids)
            tokenized.row_mask = np.isin(tokenized.token_ids, marker_ids)
            return tokenized

        return build_with_row_mask

    def _check_token_ids(self, token_ids: Sequence[int]) -> TokenIds:
        ids = to_id_array(token_ids)
        if isinstance(token_ids, list | tuple) and bool in set(map(type, token_ids)):
            raise BadRequest("Token prompt should be a list of integers", param="input")
        check_token_ids(ids, self.settings.vocab_size)
        return ids.astype(np.int32)

    def _build_embeds(self, item: PromptEmbeds) -> TokenizedInput:
        if not self.settings.enable_prompt_embeds:
            raise Unsupported("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", param="prompt_embeds")
        shape = tuple(item.embeds.shape)
        if len(shape) != 2 or shape[1] != self.settings.hidden_size:
            raise BadRequest(
                f"prompt_embeds has shape {shape}; this model expects [tokens, {self.settings.hidden_size}]"
            )
        ids = np.zeros(shape[0], dtype=np.int32)
        return TokenizedInput(ids, len(ids), len(ids), inputs_embeds=item.embeds)

    def _build_tensors(self, item: Input) -> TokenizedInput:
        if not self.settings.reads_tensors:
            raise Unsupported(
                f"multi_modal_data.image has named tensors, but {self.settings.architecture} reads tokens; tensors are "
                "for models with an IO processor plugin",
                param="multi_modal_data",
            )
        if not isinstance(item, TensorInput):
            raise Unsupported(
                f"{self.settings.architecture} does not read text: its inputs are tensors, which its IO processor "
                "plugin makes from `data`"
            )
        if self.check_tensors is not None:
            self.check_tensors(item.tensors)
        return TokenizedInput(np.array([TENSOR_INPUT_TOKEN_ID], dtype=np.int32), 1, 1, inputs_embeds=item.tensors)
