"""ModelInfo: properties of the loaded model as plain values, which can be sent to other processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cenote.protocol.params import ScoreType, Task


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the loaded model."""

    name: str  # the name in messages and responses
    root: str  # the hub name, or the last part of the folder's path
    source: str = ""  # the hub name or folder that was loaded; not for responses, as folders are private
    architecture: str
    tasks: tuple[Task, ...]
    excluded_tasks: tuple[Task, ...] = ()  # tasks that the model supports, but the pooler config excludes
    default_task: Task
    score_types: tuple[ScoreType, ...]
    max_model_len: int
    dtype: str
    device: str
    products: str | None = None  # how linear layers multiply on a CPU with kernels of ours
    deterministic: bool = False  # the results of an input do not depend on the other inputs of its batch
    embedding_size: int | None  # None if the model does not support embed
    labels: list[str] | None  # of a classifier, in the order of its probabilities
    prompts: Mapping[str, str]  # by name, from the Sentence Transformers files
    instructions: Mapping[str, str]  # by task, from config.json
    special_tokens: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # ids before and after every text
    tokenizer_info: Mapping[str, Any]  # tokenizer_config.json with the chat template, if any
    has_chat_template: bool
    default_prompt: str | None = None  # for requests that select no prompt
    has_role_formats: bool = False  # queries and documents have different formats (ColBERT), each with its own prompt
    has_routes: bool = False  # queries and documents are encoded by different modules
    late_interaction: str | None = None  # how texts are formatted for it, and why; None for other models
    adapters: tuple[str, ...] = ()  # names that requests may use
    external_adapters: Mapping[str, str] = {}  # path by name, of those not in the checkpoint
    io_processor_plugin: str | None = None  # name of the plugin in use
    supports_entities: bool = False  # a token classifier, or GLiNER
    supports_images: bool = False
    fingerprint: str = ""  # changes with everything that changes results; empty: not known
    has_result_cache: bool = False  # in the memory of its process: equal inputs should go to the same one
    pooling: str | None = None  # of the default task, such as MEAN
