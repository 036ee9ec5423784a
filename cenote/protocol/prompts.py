"""The dictionary forms of a prompt in the Python API, under the names of vLLM; imports no torch at runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, Required, TypeAlias, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class TextPrompt(TypedDict):
    """A text, with images for its placeholders."""

    prompt: str
    multi_modal_data: NotRequired[Mapping[str, Any]]  # {"image": one image or a list of them}
    mm_processor_kwargs: NotRequired[Mapping[str, Any]]
    cache_salt: NotRequired[str]  # results are shared only with calls that have the same salts


class TokensPrompt(TypedDict):
    """Token ids, with images for their placeholders."""

    prompt_token_ids: Sequence[int]
    multi_modal_data: NotRequired[Mapping[str, Any]]
    mm_processor_kwargs: NotRequired[Mapping[str, Any]]
    cache_salt: NotRequired[str]


class EmbedsPrompt(TypedDict):
    """Token embeddings, [tokens, hidden]."""

    prompt_embeds: Tensor
    cache_salt: NotRequired[str]


class DataPrompt(TypedDict):
    """Data for an IO processor plugin."""

    data: Any
    data_format: NotRequired[str]


SingletonPrompt: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt | EmbedsPrompt
# not in quotes: plugins write `PromptType | Sequence[PromptType]`, which runs
PromptType: TypeAlias = SingletonPrompt | DataPrompt

# a content part of OpenAI's chat API: a text or an image
ScoreContentPartParam: TypeAlias = dict[str, Any]


class ScoreMultiModalParam(TypedDict, total=False):
    """A query or document with images, for `LLM.score`."""

    content: Required[Sequence[ScoreContentPartParam]]
