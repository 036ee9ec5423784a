"""Pairs of encoder-decoder rerankers as one sequence: the template up to the document, then the decoder's input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from cenote.errors import BadRequest, InputTooLong, Unsupported
from cenote.inputs.pairs import render_around_document, truncate_ids
from cenote.inputs.sequence_builder import BuildFn, RenderOptions, SequenceBuilder
from cenote.inputs.template_truncation import crop_to_tokens
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import TokenIds, Tokenizer
from cenote.models.text_format import PairLengths
from cenote.protocol.input_types import ScoreTemplate, TextPair


class DecoderPairs:
    """Plans pairs: the score template up to the document's end is for the encoder, the rest for the decoder."""

    def __init__(self, tokenizer: Tokenizer, lengths: PairLengths, special_tokens: Mapping[str, str]) -> None:
        self.tokenizer = tokenizer
        self.sequence_builder = SequenceBuilder(tokenizer)
        self.lengths = lengths
        self.special_tokens = special_tokens

    def plan(
        self, pair: TextPair, template: ScoreTemplate | None, options: RenderOptions, texts: dict[str, None]
    ) -> BuildFn:
        """Add both texts to `texts` and return the function that builds the sequence."""
        max_tokens = options.max_tokens
        if options.tokenization.pad_prompt_tokens:
            raise Unsupported("an encoder-decoder reranker reads no padding; remove the padding option")
        side = self.tokenizer.find_truncation_side(options.tokenization)
        query = self._cut_query(pair.query)
        before, decoder_text = self._render(replace(pair, query=query), template)
        full_text = before + pair.document
        document_text = self.sequence_builder.crop_text(full_text, options._replace(max_tokens=self.lengths.document))
        self.sequence_builder.crop_text(decoder_text, options._replace(max_tokens=None))  # checks the length
        is_exact = len(document_text) == len(full_text) and query == pair.query
        texts[document_text] = texts[decoder_text] = None

        def build(ids: dict[str, TokenIds]) -> TokenizedInput:
            document_ids, decoder_ids = ids[document_text], ids[decoder_text]
            room = self.lengths.document
            if max_tokens is not None and (room := min(room, max_tokens - len(decoder_ids))) < 1:
                raise InputTooLong(
                    f"the query and its template have {len(decoder_ids)} tokens, which leaves no room for the document "
                    f"in {max_tokens}; raise truncate_prompt_tokens",
                    param="input_tokens",
                    value=len(decoder_ids),
                )
            kept = truncate_ids(document_ids, room, side)
            return TokenizedInput(
                np.concatenate((kept, decoder_ids)),
                len(kept),
                len(document_ids) + len(decoder_ids),
                is_input_count_exact=is_exact,
            )

        return build

    def _render(self, pair: TextPair, template: ScoreTemplate | None) -> tuple[str, str]:
        """Return the text before the document, and that after it, which is for the decoder."""
        if pair.template is not None:
            template = ScoreTemplate(pair.template, "given")
        if template is None:
            raise Unsupported(
                "an encoder-decoder reranker needs a score template, whose text after the document is for the decoder; "
                "set --score-template"
            )
        around = render_around_document(pair, self.special_tokens, template)
        if around is None or not around[1]:
            raise BadRequest(
                f"the score template {template.name} must contain the document once, with text for the decoder after it"
            )
        return around

    def _cut_query(self, query: str) -> str:
        """Return the query, cut to its longest length before it is rendered, as in the model's code."""
        if len(query.encode(errors="replace")) <= self.lengths.query:  # a token is a byte or more
            return query
        (encoding,) = self.tokenizer.encode_with_offsets([query])
        return crop_to_tokens(query, encoding.starts, encoding.ends, self.lengths.query, "right")
