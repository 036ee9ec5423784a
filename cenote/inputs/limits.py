"""Token limits of inputs: maximum length, truncation length, padding length, and the errors for exceeding them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cenote.errors import BadRequest, InputTooLong, TruncationTooLong
from cenote.protocol.params import TokenizationParams

# before vLLM's text, which clients look for anywhere in a message, as this is what a person has to read
SET_TRUNCATION = "Set truncate_prompt_tokens=-1"
SERVER_ADVICE = "; a server does so by default"
TOO_LONG_ADVICE = (
    f"{SET_TRUNCATION} to cut such inputs to {{max_tokens}} tokens{SERVER_ADVICE} with --auto-truncate, and embeds "
    "long texts in chunks with --pooler-config.enable_chunked_processing. "
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum length of an input, and the option that sets it."""

    max_tokens: int
    name: str = "max_model_len"  # max_embed_len if long texts are embedded in chunks
    is_bounded: bool = True  # False: inputs of any length are accepted
    is_chunked: bool = False  # longer texts are chunked: truncate_prompt_tokens=-1 does not truncate
    max_padded_tokens: int | None = None  # to which padding fills up, if it is less than max_tokens


UNLIMITED = Limits(0, is_bounded=False)


def check_tokenization_params(tokenization: TokenizationParams, limits: Limits) -> None:
    """Raise BadRequest for parameters that are invalid for every input."""
    resolve_truncation_length(tokenization, limits)
    resolve_padding_length(tokenization, limits)


def resolve_truncation_length(tokenization: TokenizationParams, limits: Limits) -> int | None:
    """Return the number of tokens to truncate to; None: no truncation."""
    if tokenization.truncation_side not in (None, "left", "right"):
        raise BadRequest("`truncation_side` must be either 'left' or 'right'.", param="truncation_side")
    requested = check_token_count("truncate_prompt_tokens", tokenization.truncate_prompt_tokens)
    if requested is None or (requested == -1 and limits.is_chunked):
        return None
    if requested == -1:
        return limits.max_tokens
    if limits.is_bounded and requested > limits.max_tokens:
        error_type = TruncationTooLong if limits.name == "max_model_len" else BadRequest
        raise error_type(
            f"truncate_prompt_tokens={requested} cannot be greater than max_model_len - max_output_tokens = "
            f"{limits.max_tokens}. Please request a smaller truncation size.",
            param="truncate_prompt_tokens",
        )
    return requested


def resolve_padding_length(tokenization: TokenizationParams, limits: Limits) -> int | None:
    """Return the number of tokens to pad to; None: no padding.

    Capped at one above the limit: such an input is truncated or refused like any longer one, without large arrays.
    """
    requested = check_token_count("pad_prompt_tokens", tokenization.pad_prompt_tokens)
    if requested is None:
        return None
    max_padded = limits.max_tokens if limits.max_padded_tokens is None else limits.max_padded_tokens
    return max_padded if requested == -1 else min(requested, limits.max_tokens + 1)


def check_token_count(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < -1):
        raise BadRequest(f"{name} is -1 or a number of tokens, got {value!r}", param=name)
    return value


def check_length(length: int, limits: Limits) -> None:
    if length == 0:
        raise BadRequest("The decoder prompt cannot be empty", param="input")
    if not limits.is_bounded or length <= limits.max_tokens:
        return
    if limits.name != "max_model_len":
        raise InputTooLong(
            f"Input length {length} exceeds {limits.name} {limits.max_tokens}; shorten the input or raise the limit",
            param="input_tokens",
            value=length,
        )
    count = f"{'at least ' if length == limits.max_tokens + 1 else ''}{length}"
    raise InputTooLong(
        f"{TOO_LONG_ADVICE.format(max_tokens=limits.max_tokens)}"
        f"This model's maximum context length is {limits.max_tokens} tokens. However, you requested 0 output tokens "
        f"and your prompt contains {count} input tokens, for a total of {count} tokens. Please reduce the length of "
        "the input prompt or the number of requested output tokens.",
        param="input_tokens",
        value=length,
    )


def split_budget(lengths: Sequence[int], budget: int) -> list[int]:
    """Distribute a token budget over texts of the given lengths: longest-first truncation, using all of the budget."""
    kept, remaining = [0] * len(lengths), max(0, budget)
    for rank, index in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        kept[index] = min(lengths[index], remaining // (len(lengths) - rank))
        remaining -= kept[index]
    return kept


def too_many_chars_message(limits: Limits, length: int, max_chars: int) -> str:
    if limits.name != "max_model_len":
        return (
            f"Input of {length} characters exceeds {limits.name} {limits.max_tokens}: that many tokens have at most "
            f"{max_chars} characters; shorten the input or raise {limits.name}"
        )
    return (
        f"{TOO_LONG_ADVICE.format(max_tokens=limits.max_tokens)}"
        f"This model's maximum context length is {limits.max_tokens} tokens. However, you requested 0 output tokens "
        f"and your prompt contains {length} characters (more than {max_chars} characters, which is the upper bound for "
        f"{limits.max_tokens} input tokens). Please reduce the length of the input prompt or the number of requested "
        "output tokens."
    )
