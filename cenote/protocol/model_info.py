"""Facts about the loaded model, as plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass
from cenote.protocol.params import ScoreType, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a loaded model says of itself; plain values, so that they travel between processes."""

    name: str  # the name in messages and replies
    root: str  # what was loaded: a hub name or a folder
    architecture: str
    tasks: tuple[Task, ...]
    default_task: Task
    score_types: tuple[ScoreType, ...]
    max_model_len: int
    dtype: str
    device: str
    embedding_size: int | None  # None where the model embeds nothing
    labels: list[str] | None  # of a classifier, in the order of its probabilities
    prompts: Mapping[str, str]  # by name, from the Sentence Transformers files
    instructions: Mapping[str, str]  # by task, from config.json
    tokenizer_info: Mapping[str, Any]  # tokenizer_config.json, and the chat template if there is one
    has_chat_template: bool
    default_prompt: str | None = None  # before the texts of requests that say nothing
    has_role_formats: bool = False  # queries and documents are read in different ways, each with its own prompt
    adapters: tuple[str, ...] = ()  # names that a request may give
    external_adapters: Mapping[str, str] = field(default_factory=dict)  # those that are no part of it, and their places
    io_processor_plugin: str | None = None  # the IO processor in use
    supports_entities: bool = False  # a class for every token, with a name
    supports_images: bool = False
