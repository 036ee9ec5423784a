"""What a model may be given to read: one input, in all its forms; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cenote.errors import PoolingError
from cenote.protocol.images import ImageSource, ProcessedImage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ContentParts:
    """Texts and images that are read as one, in parts as OpenAI's clients write them."""

    content: Sequence[Mapping[str, Any]]
    param_path: str = "content"  # what messages about it call it


ScoreInput: TypeAlias = "str | ContentParts"


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query and a document that the model reads together."""

    query: str
    document: str
    template: str | None = None  # Jinja text that joins them; the model's own way when unset
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[ProcessedImage, ...] = ()  # the images that are marked in them


@dataclass(frozen=True, slots=True)
class MultimodalPair:
    """A pair whose images nobody has looked at yet."""

    query: ScoreInput
    document: ScoreInput
    template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListwiseInput:
    """A query and all documents that it is compared with, which the model reads in one prompt."""

    query: str
    documents: Sequence[str]
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreTemplate:
    """How a model was taught to read a pair: Jinja text, and what it sees beside query and document."""

    text: str
    name: str  # what it is called where people look
    variables: Mapping[str, Any] = field(default_factory=dict)
    instruction: str | None = None  # where the request has none
    has_system_message: bool = False  # an instruction is also a message, of the role system
    has_content_parts: bool = False  # contents are lists of parts
    add_special_tokens: bool = True  # around what it writes
    is_document_verbatim: bool = False  # the document stands in it as it is, and nothing else depends on it


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation, which a chat template turns into one text."""

    messages: Sequence[Mapping[str, Any]]
    template: str | None = None  # Jinja text; the server's or the tokenizer's own when unset
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    image_names: tuple[str, ...] = ()  # of its images in messages to people; where they stand when unset
    images: tuple[ProcessedImage, ...] = ()  # its images, in their order, when they have been read


@dataclass(frozen=True, slots=True, eq=False)
class MultimodalPrompt:
    """A prompt with marks in it, and the images that they stand for."""

    prompt: str | Sequence[int]
    images: Sequence[ImageSource | ProcessedImage]
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)  # how they are read, where not as all others


@dataclass(frozen=True, slots=True, eq=False)
class InvalidInput:
    """An input of which it is known already that it cannot be read."""

    error: PoolingError


@dataclass(frozen=True, slots=True, eq=False)
class PromptEmbeds:
    """A prompt given as token embeddings, [tokens, hidden]."""

    embeds: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TensorInput:
    """What a model without tokens reads: tensors by their names, as an IO processor plugin makes them."""

    tensors: Mapping[str, Tensor]


# a text, one prompt of token ids, two texts or more read as one, a conversation, anything of that with images,
# ready-made token embeddings, or tensors in place of tokens
Input: TypeAlias = (
    "str | Sequence[int] | TextPair | MultimodalPair | ListwiseInput | Conversation | ContentParts | "
    "MultimodalPrompt | InvalidInput | PromptEmbeds | TensorInput"
)


def compute_input_size(item: Input) -> int:
    """Characters, tokens or bytes, whichever it is given in: a measure of the work before anything is tokenized."""
    if isinstance(item, TextPair):
        return len(item.query) + len(item.document) + _compute_nested_size(item.images)
    if isinstance(item, MultimodalPair):
        return compute_input_size(item.query) + compute_input_size(item.document)
    if isinstance(item, ListwiseInput):
        return 2 * len(item.query) + sum(map(len, item.documents))
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


def _compute_nested_size(value: Any, depth: int = 8) -> int:
    """The same of what holds texts and images in lists and mappings; long ones are not copied to be measured."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, ProcessedImage):
        return value.num_bytes
    if isinstance(value, ImageSource):
        return _compute_nested_size(value.source)
    if not depth or not isinstance(value, Mapping | list | tuple):
        return 0
    return sum(
        _compute_nested_size(each, depth - 1) for each in (value.values() if isinstance(value, Mapping) else value)
    )
