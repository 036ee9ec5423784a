"""Parse the prompt formats of the Python API (those of vLLM), and `tokenization_kwargs`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cenote.errors import BadRequest, Unsupported
from cenote.protocol.images import ImageSource
from cenote.protocol.input_types import ChunkedDocument, Input, MultimodalPrompt, PromptEmbeds, TensorInput
from cenote.protocol.params import TokenizationParams
from cenote.protocol.scheduling import hash_cache_salt
from cenote.utils.tensors import is_tensor

logger = logging.getLogger("cenote")

# texts, token ids and documents; the renderer validates token ids, so a large list is not scanned here
PLAIN_TYPES = {str, list, tuple, ChunkedDocument}
DEFAULT_TOKENIZATION = TokenizationParams()


def parse_prompts(prompts: Any) -> list[Input]:
    """Return a prompt, or a sequence of prompts, as a list of inputs."""
    if type(prompts) is list and prompts and set(map(type, prompts)) <= PLAIN_TYPES:  # nearly all calls
        return prompts.copy()
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    if isinstance(prompts, str | Mapping) or _is_token_ids(prompts):
        return [parse_prompt(prompts)]
    if not isinstance(prompts, Sequence):
        prompts = list(prompts) if hasattr(prompts, "__iter__") else [prompts]
    if not prompts:
        raise BadRequest("You must pass at least one prompt")
    if set(map(type, prompts)) <= PLAIN_TYPES:
        return list(prompts)
    return [parse_prompt(prompt) for prompt in prompts]


def parse_cache_salt(prompts: Any) -> str | None:
    """Return the `cache_salt` of the prompts of one call; several of them are combined."""
    if not isinstance(prompts, Mapping | list | tuple):
        return None
    if isinstance(prompts, list | tuple) and set(map(type, prompts)) <= PLAIN_TYPES:
        return None
    mappings = [
        prompt for prompt in ([prompts] if isinstance(prompts, Mapping) else prompts) if isinstance(prompt, Mapping)
    ]
    salts = [hash_cache_salt(salt) for prompt in mappings if (salt := prompt.get("cache_salt")) is not None]
    return " ".join(sorted(set(salts))) or None


def parse_prompt(prompt: Any) -> Input:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        return _parse_mapping(prompt)
    if isinstance(prompt, list | tuple | range):
        return prompt
    if isinstance(prompt, np.ndarray):
        if prompt.ndim != 1 or (prompt.dtype.kind not in "iu" and not all(map(_is_integer, prompt))):
            raise BadRequest("Token prompt should be a list of integers")
        return prompt  # type: ignore[return-value]
    raise BadRequest(f"Prompt should be a string, list of tokens, or dictionary, not {type(prompt).__name__}")


def _is_token_ids(prompts: Any) -> bool:
    return isinstance(prompts, list | tuple | range) and bool(prompts) and _is_integer(prompts[0])


def _is_integer(token: Any) -> bool:
    return isinstance(token, int | np.integer) and not isinstance(token, bool)


def _parse_mapping(prompt: Mapping[str, Any]) -> Input:
    if (types := prompt.get("token_type_ids")) is not None and np.any(np.asarray(types)):
        raise Unsupported(
            "token_type_ids of a prompt are not supported; use LLM.score for pairs of texts", param="token_type_ids"
        )
    if prompt.get("multi_modal_data"):
        return _parse_multimodal(prompt)
    if (embeds := prompt.get("prompt_embeds")) is not None:
        if not is_tensor(embeds):
            raise BadRequest(f"prompt_embeds must be a tensor [tokens, hidden], got {type(embeds).__name__}")
        return PromptEmbeds(_to_array(embeds))
    if (ids := prompt.get("prompt_token_ids")) is not None:
        if isinstance(ids, str | Mapping) or not isinstance(ids, Sequence | np.ndarray):
            raise BadRequest("Token prompt should be a list of integers")
        return parse_prompt(ids)
    if "prompt" in prompt:
        if not isinstance(prompt["prompt"], str):
            raise BadRequest("Prompt text should be a string")
        return prompt["prompt"]
    raise BadRequest("Prompt dictionary must contain text, tokens, or embeddings")


def _parse_multimodal(prompt: Mapping[str, Any]) -> Input:
    """Parse a prompt with one image or a list of images, or with named tensors for a tensor model."""
    data = prompt["multi_modal_data"]
    if not isinstance(data, Mapping) or set(data) != {"image"}:
        actual = ", ".join(map(repr, data)) if isinstance(data, Mapping) else type(data).__name__
        raise Unsupported(f'multi_modal_data must be {{"image": ...}}, got {actual}', param="multi_modal_data")
    source = data["image"]
    if isinstance(source, Mapping):
        return _parse_tensors(source)
    if isinstance(source, list | tuple):
        images = [ImageSource(image, f"multi_modal_data.image[{index}]") for index, image in enumerate(source)]
    else:
        images = [ImageSource(source)]
    text = _parse_mapping({name: value for name, value in prompt.items() if name != "multi_modal_data"})
    if isinstance(text, PromptEmbeds):
        raise Unsupported("prompt_embeds cannot be combined with multi_modal_data", param="prompt_embeds")
    options = prompt.get("mm_processor_kwargs") or {}
    if not isinstance(options, Mapping):
        raise BadRequest(f"mm_processor_kwargs must be a dictionary, got {type(options).__name__}")
    return MultimodalPrompt(text, images, options) if images else text  # type: ignore[arg-type]  # text or token ids


def _parse_tensors(tensors: Mapping[str, Any]) -> TensorInput:
    for name, item in tensors.items():
        if not isinstance(item, np.ndarray) and not is_tensor(item):
            raise BadRequest(f"{name} of multi_modal_data.image must be a tensor, got {type(item).__name__}")
    return TensorInput({name: _to_array(item) for name, item in tensors.items()})


def _to_array(values: Any) -> np.ndarray[Any, Any]:
    """Return an array, of float32 for the types of floats that NumPy does not have."""
    if isinstance(values, np.ndarray):
        return values
    values = values.detach().cpu()
    try:
        return values.numpy()  # type: ignore[no-any-return]
    except TypeError:
        return values.float().numpy()  # type: ignore[no-any-return]


def parse_tokenization_kwargs(kwargs: Mapping[str, Any] | None) -> TokenizationParams:
    """Convert `tokenization_kwargs`; unknown keys are logged and ignored."""
    if kwargs is None:
        return DEFAULT_TOKENIZATION
    if not isinstance(kwargs, Mapping | None):
        raise BadRequest(f"tokenization_kwargs must be a dict, got {type(kwargs).__name__}")
    kwargs = dict(kwargs or {})
    max_length = kwargs.pop("max_length", None)
    truncate = kwargs.pop("truncate_prompt_tokens", None)
    if kwargs.pop("truncation", None) in (True, "longest_first", "only_first", "only_second") and truncate is None:
        truncate = -1 if max_length is None else max_length
    pad = kwargs.pop("pad_prompt_tokens", None)
    padding = kwargs.pop("padding", None)
    if padding == "max_length" and pad is None:
        pad = -1 if max_length is None else max_length
    elif padding in (False, "do_not_pad") and pad is None:
        pad = 0  # not even for a model that was trained on padded texts
    known = {
        name: kwargs.pop(name) for name in ("truncation_side", "add_special_tokens", "do_lower_case") if name in kwargs
    }
    if kwargs:
        logger.warning("ignoring unknown tokenization_kwargs: %s", ", ".join(sorted(kwargs)))
    return TokenizationParams(truncate_prompt_tokens=truncate, pad_prompt_tokens=pad, **known)
