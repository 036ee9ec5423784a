"""Fields with which clients of several vendors select the type, size and truncation of embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from msgspec import Meta
from msgspec.structs import replace

from cenote.api.encoding import CohereEmbeddingType, QuantizedType
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import Dimensions, PromptTextFields, doc
from cenote.errors import BadRequest, InvalidBody
from cenote.protocol.params import TokenizationParams

ChunkSize = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TruncateMode = bool | Literal["END", "START", "NONE"]

TYPE_DOC = "Type of the values: int8, uint8, or bits in bytes, as /v2/embed returns them."


class EmbeddingTypeFields(PromptTextFields, kw_only=True):
    """Types, size and truncation of embeddings, as Voyage, Jina, NIM and Infinity name them."""

    dimensions: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None,
        doc("Embedding size, for Matryoshka models; with modality, 0 for the model's own."),
    ] = None
    modality: Annotated[
        Literal["text"] | list[Literal["text"]] | None,
        doc("Field of Infinity and NIM, whose list has one for each input."),
    ] = None
    output_dimension: Annotated[Dimensions | None, doc("Alias of dimensions.")] = None
    output_dtype: Annotated[CohereEmbeddingType | None, doc(TYPE_DOC)] = None
    embedding_type: Annotated[
        CohereEmbeddingType | list[CohereEmbeddingType] | None, doc("Alias of output_dtype; a list may have one item.")
    ] = None
    encoding_type: Annotated[CohereEmbeddingType | None, doc("Alias of output_dtype.")] = None
    normalized: Annotated[bool | None, doc("Alias of normalize.")] = None
    truncation: Annotated[bool | None, doc("Truncate inputs to the model maximum.")] = None
    truncate: Annotated[
        TruncateMode | None, doc("Truncate inputs to the model maximum, at the end or the start; false or NONE: never.")
    ] = None
    late_chunking: Annotated[
        bool | None,
        doc("The inputs are consecutive chunks of one document: each is embedded in the context of the others."),
    ] = None
    chunk_size: Annotated[
        ChunkSize | None,
        doc(
            "Split the input, one text, into chunks of at most this many characters, for late chunking. Entries have "
            "the start and end of their chunk."
        ),
    ] = None
    return_multivector: Annotated[
        bool | None, doc("Refused if true: /pooling with the task token_embed returns one vector per token.")
    ] = None

    def resolve_type(self) -> QuantizedType | None:
        """Return the type of integers, None for floats; `encoding_format` is changed to base64 if a type says so."""
        given: list[Any] = [self.output_dtype, self.embedding_type, self.encoding_type]
        if given == [None, None, None]:
            return None
        if isinstance(self.embedding_type, list):
            if len(self.embedding_type) != 1:
                raise BadRequest(
                    f"embedding_type has {len(self.embedding_type)} items, but one type is returned here; /v2/embed "
                    "returns several",
                    param="embedding_type",
                )
            given[1] = self.embedding_type[0]
        types = {name for name in given if name not in (None, "float", "base64")}
        if len(types) > 1:
            raise BadRequest(f"conflicting types of embeddings: {', '.join(sorted(types))}", param="embedding_type")
        if "base64" in given and self.encoding_format in (None, "float"):
            self.encoding_format = "base64"
        if types and (self.encoding_format in ("bytes", "bytes_only") or self.embed_dtype is not None):
            raise BadRequest(
                f"{types.pop()} values are returned as JSON or base64; leave out embed_dtype and encoding_format=bytes",
                param="encoding_format",
            )
        return cast("QuantizedType", types.pop()) if types else None

    def resolve_dimensions(self) -> int | None:
        if self.dimensions == 0:
            if self.modality is None:
                raise InvalidBody(
                    "dimensions: expected int >= 1", param="body.dimensions", value=0, kind="greater_than_equal"
                )
            self.dimensions = None  # the default of Infinity's client
        if self.output_dimension is None:
            return self.dimensions
        if self.dimensions not in (None, self.output_dimension):
            raise BadRequest(
                f"output_dimension is an alias of dimensions; both were given, with different values: "
                f"{self.output_dimension} and {self.dimensions}",
                param="output_dimension",
            )
        return self.output_dimension

    def check_options(self) -> None:
        """Raise for options that would change the answer and are not supported."""
        if self.return_multivector:
            raise BadRequest(
                "return_multivector is not supported here; /pooling with task=token_embed returns one vector per token",
                param="return_multivector",
            )
        if self.normalized is not None:
            if self.normalize not in (None, self.normalized):
                raise BadRequest(
                    "normalized is an alias of normalize; both were given, with different values", param="normalized"
                )
            self.normalize = self.normalized


def apply_truncation(
    tokenization: TokenizationParams, modes: tuple[TruncateMode | None, ...], context: RequestContext
) -> TokenizationParams:
    """Return the parameters for the first truncation mode that the request sets."""
    mode = next((mode for mode in modes if mode is not None), None)
    if mode is None or tokenization.truncate_prompt_tokens is not None:
        return tokenization
    if mode in (False, "NONE"):
        context.auto_truncates = False
        return tokenization
    side = "left" if mode == "START" else tokenization.truncation_side
    return replace(tokenization, truncate_prompt_tokens=-1, truncation_side=side)
