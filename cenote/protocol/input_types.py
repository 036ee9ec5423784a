"""What a model may be given to read: one input, in all its forms; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cenote.errors import PoolingError
from cenote.protocol.images import Image, Picture

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parts:
    """Texts and images that are read as one, in parts as OpenAI's clients write them."""

    content: Sequence[Mapping[str, Any]]
    where: str = "content"  # what messages about it call it


Side: TypeAlias = "str | Parts"


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a document that the model reads together."""

    query: str
    document: str
    template: str | None = None  # Jinja text that joins them; the model's own way when unset
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()  # the images that are marked in them


@dataclass(frozen=True, slots=True)
class PartsPair:
    """A pair whose images nobody has looked at yet."""

    query: Side
    document: Side
    template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ranking:
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
    has_system: bool = False  # an instruction is also a message, of the role system
    in_parts: bool = False  # contents are lists of parts
    adds_special_tokens: bool = True  # around what it writes
    verbatim: bool = False  # the document stands in it as it is, and nothing else depends on it


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation, which a chat template turns into one text."""

    messages: Sequence[Mapping[str, Any]]
    template: str | None = None  # Jinja text; the server's or the tokenizer's own when unset
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    names: tuple[str, ...] = ()  # of its images in messages to people; where they stand when unset
    pictures: tuple[Picture, ...] = ()  # its images, in their order, when they have been read


@dataclass(frozen=True, slots=True, eq=False)
class Pictured:
    """A prompt with marks in it, and the images that they stand for."""

    prompt: str | Sequence[int]
    images: Sequence[Image | Picture]
    options: Mapping[str, Any] = field(default_factory=dict)  # how they are read, where not as all others


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """An input of which it is known already that it cannot be read."""

    error: PoolingError


@dataclass(frozen=True, slots=True, eq=False)
class Embeds:
    """A prompt given as token embeddings, [tokens, hidden]."""

    rows: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """What a model without tokens reads: tensors by their names, as an IO processor plugin makes them."""

    values: Mapping[str, Tensor]


# a text, one prompt of token ids, two texts or more read as one, a conversation, anything of that with images,
# ready-made token embeddings, or tensors in place of tokens
Input: TypeAlias = (
    "str | Sequence[int] | Pair | PartsPair | Ranking | Chat | Parts | Pictured | Refused | Embeds | Tensors"
)


def input_size(item: Input) -> int:
    """Characters, tokens or bytes, whichever it is given in: a measure of the work before anything is tokenized."""
    if isinstance(item, Pair):
        return len(item.query) + len(item.document) + _size(item.pictures)
    if isinstance(item, PartsPair):
        return input_size(item.query) + input_size(item.document)
    if isinstance(item, Ranking):
        return 2 * len(item.query) + sum(map(len, item.documents))
    if isinstance(item, Chat):
        return _size(item.messages) + _size(item.pictures)
    if isinstance(item, Parts):
        return _size(item.content)
    if isinstance(item, Pictured):
        return len(item.prompt) + _size(item.images)
    if isinstance(item, Refused):
        return 0
    if isinstance(item, Tensors):
        return sum(tensor.nbytes for tensor in item.values.values())
    return len(item.rows) if isinstance(item, Embeds) else len(item)


def _size(value: Any, depth: int = 8) -> int:
    """The same of what holds texts and images in lists and mappings; long ones are not copied to be measured."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Picture):
        return value.num_bytes
    if isinstance(value, Image):
        return _size(value.source)
    if not depth or not isinstance(value, Mapping | list | tuple):
        return 0
    return sum(_size(each, depth - 1) for each in (value.values() if isinstance(value, Mapping) else value))
