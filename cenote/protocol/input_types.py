"""The types of one input of a request; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from cenote.errors import PoolingError
from cenote.protocol.images import ImageSource, ProcessedImage

if TYPE_CHECKING:
    import numpy as np

VALUE_CHARS = 4  # of a number, or of the punctuation of a list

# what errors say about token ids that a client made with the tokenizer of another model
TEXTS_ADVICE = "send texts instead of ids of another tokenizer (LangChain: check_embedding_ctx_length=False)"


class ContentParts(msgspec.Struct, frozen=True):
    """Texts and images that form one input, as a list of OpenAI content parts."""

    content: Sequence[Mapping[str, Any]]
    param_path: str = "content"  # its name in error messages


ScoreInput: TypeAlias = "str | ContentParts"


class TextPair(msgspec.Struct, frozen=True):
    """A query and a document that the model encodes together."""

    query: str
    document: str
    template: str | None = None  # Jinja text that joins them; None: the model's score template
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    images: tuple[ProcessedImage, ...] = ()  # one for each image placeholder in the texts


class MultimodalPair(msgspec.Struct, frozen=True):
    """A query and a document of which at least one has images, not yet preprocessed."""

    query: ScoreInput
    document: ScoreInput
    template: str | None = None
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ListwiseInput(msgspec.Struct, frozen=True):
    """A query and all documents to rank for it, which the model encodes in one prompt."""

    query: str
    documents: Sequence[str]
    instruction: str | None = None


class ChunkedDocument(msgspec.Struct, frozen=True):
    """Consecutive chunks of one document, encoded as one sequence; its result has a row for each chunk."""

    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScoreTemplate:
    """The format in which a model was trained on pairs: a Jinja template and its variables."""

    text: str
    name: str  # shown in logs and by `cenote inspect`
    variables: Mapping[str, Any] = field(default_factory=dict)
    instruction: str | None = None  # default for requests without one
    has_system_message: bool = False  # pass an instruction also as a message with the role system
    has_content_parts: bool = False  # message contents are lists of parts
    add_special_tokens: bool = True  # around the rendered text
    is_document_verbatim: bool = False  # the document appears in it unchanged, and nothing else depends on it
    is_user_given: bool = False  # from an option, not from the model: always applied, also to texts that contain it


class Conversation(msgspec.Struct, frozen=True):
    """A list of chat messages, rendered to one text by a chat template."""

    messages: Sequence[Mapping[str, Any]]
    template: str | None = None  # Jinja text; None: the server's or the tokenizer's template
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    image_names: tuple[str, ...] = ()  # of its images in error messages; empty: their path in the messages
    images: tuple[ProcessedImage, ...] = ()  # in order, once they are preprocessed


class MultimodalPrompt(msgspec.Struct, frozen=True, eq=False):
    """A prompt with image placeholders and the images to put there."""

    prompt: str | Sequence[int]
    images: Sequence[ImageSource | ProcessedImage]
    mm_processor_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)  # override those of the request


class InvalidInput(msgspec.Struct, frozen=True, eq=False):
    """An input that failed before tokenization."""

    error: PoolingError


class PromptEmbeds(msgspec.Struct, frozen=True, eq=False):
    """A prompt given as token embeddings, [tokens, hidden]."""

    embeds: np.ndarray[Any, Any]


class TensorInput(msgspec.Struct, frozen=True, eq=False):
    """Input of a model without a tokenizer: named tensors made by an IO processor plugin."""

    tensors: Mapping[str, np.ndarray[Any, Any]]


# a text, a prompt of token ids, a pair or list of texts encoded together, a document in chunks, a conversation, any of
# these with images, token embeddings, or named tensors
Input: TypeAlias = (
    "str | Sequence[int] | TextPair | MultimodalPair | ListwiseInput | ChunkedDocument | Conversation | ContentParts | "
    "MultimodalPrompt | InvalidInput | PromptEmbeds | TensorInput"
)


def compute_input_size(item: Input) -> int:
    """Return the size in characters, token ids or bytes, an estimate of the work before tokenization."""
    if isinstance(item, str):
        return len(item)
    if isinstance(item, TextPair):
        return len(item.query) + len(item.document) + _compute_nested_size(item.images)
    if isinstance(item, MultimodalPair):
        return compute_input_size(item.query) + compute_input_size(item.document)
    if isinstance(item, ListwiseInput):
        return 2 * len(item.query) + sum(map(len, item.documents))
    if isinstance(item, ChunkedDocument):
        return sum(map(len, item.chunks))
    if isinstance(item, Conversation):
        return _compute_nested_size(item.messages) + _compute_nested_size(item.images)
    if isinstance(item, ContentParts):
        return _compute_nested_size(item.content)
    if isinstance(item, MultimodalPrompt):
        return len(item.prompt) + _compute_nested_size(item.images)
    if isinstance(item, InvalidInput):
        return 0
    if isinstance(item, TensorInput):
        return sum(tensor.nbytes for tensor in item.tensors.values())
    return len(item.embeds) if isinstance(item, PromptEmbeds) else len(item)


def compute_inputs_size(inputs: Sequence[Input]) -> int:
    """Return the size of all inputs of a request, with the variables of a template as often as they are rendered."""
    size = sum(map(compute_input_size, inputs))
    return size if not inputs or isinstance(inputs[0], str | list) else size + count_variable_chars(inputs)


def compute_text_size(inputs: Sequence[Input]) -> int:
    """Return the size of all inputs without their preprocessed images."""
    images = [image for item in inputs for image in getattr(item, "images", ()) if isinstance(image, ProcessedImage)]
    return compute_inputs_size(inputs) - sum([image.num_bytes for image in images])


def count_variable_chars(inputs: Sequence[object]) -> int:
    """Return the size of the template variables of all inputs; inputs of a request may share them."""
    sizes: dict[int, int] = {}
    num_chars = 0
    for item in inputs:
        if variables := getattr(item, "template_kwargs", None):
            if (size := sizes.get(id(variables))) is None:
                size = sizes[id(variables)] = count_nested_chars(variables)
            num_chars += size
    return num_chars


def count_nested_chars(value: Any, depth: int = 64) -> int:
    """Return about the length of a JSON value: of its texts, its keys, and of a few characters for other values."""
    if isinstance(value, str):
        return len(value)
    if not depth or not isinstance(value, Mapping | list | tuple):
        return VALUE_CHARS
    if isinstance(value, Mapping):
        return sum([len(str(key)) + count_nested_chars(item, depth - 1) for key, item in value.items()], VALUE_CHARS)
    return sum([count_nested_chars(item, depth - 1) for item in value], VALUE_CHARS)


def _compute_nested_size(value: Any, depth: int = 8) -> int:
    """Return the summed size of texts and images in nested lists and mappings, without copying them."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, ProcessedImage):
        return value.num_bytes
    if isinstance(value, ImageSource):
        return _compute_nested_size(value.source)
    if not depth or not isinstance(value, Mapping | list | tuple):
        return 0
    return sum(
        _compute_nested_size(item, depth - 1) for item in (value.values() if isinstance(value, Mapping) else value)
    )
