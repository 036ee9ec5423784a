"""How long an input may be, to how many tokens it is cut or filled up, and the words of refusal."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.errors import BadRequest, InputTooLong
from cenote.protocol.params import TokenizationParams

TRUNCATION_HINT = "To cut long inputs instead, set truncate_prompt_tokens: -1 keeps as much as the model reads."


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an input may be. Without a name of its own, a limit is `max_model_len`."""

    max_tokens: int
    name: str = "max_model_len"  # or max_embed_len, where long texts are embedded in chunks
    is_bounded: bool = True  # False: any length
    is_chunked: bool = False  # what is longer than the model reads is no reason to cut


UNLIMITED = Limits(0, is_bounded=False)


def check_tokenization_params(tokenization: TokenizationParams, limits: Limits) -> None:
    """Refuse what would be refused for every input alike."""
    resolve_truncation_length(tokenization, limits)
    resolve_padding_length(tokenization, limits)


def resolve_truncation_length(tokenization: TokenizationParams, limits: Limits) -> int | None:
    """The number of tokens an input is cut to; None leaves it whole."""
    if tokenization.truncation_side not in (None, "left", "right"):
        raise BadRequest("`truncation_side` must be either 'left' or 'right'.", param="truncation_side")
    wanted = check_token_count("truncate_prompt_tokens", tokenization.truncate_prompt_tokens)
    if wanted is None or (wanted == -1 and limits.is_chunked):
        return None
    if wanted == -1:
        return limits.max_tokens
    if limits.is_bounded and wanted > limits.max_tokens:
        raise BadRequest(
            f"truncate_prompt_tokens={wanted} cannot be greater than max_model_len - max_output_tokens = "
            f"{limits.max_tokens}. Please request a smaller truncation size.",
            param="truncate_prompt_tokens",
        )
    return wanted


def resolve_padding_length(tokenization: TokenizationParams, limits: Limits) -> int | None:
    """The tokens a short input is filled up to; one more than fits is cut or refused like any number above."""
    wanted = check_token_count("pad_prompt_tokens", tokenization.pad_prompt_tokens)
    if wanted is None:
        return None
    return limits.max_tokens if wanted == -1 else min(wanted, limits.max_tokens + 1)


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
    about = f"{'at least ' if length == limits.max_tokens + 1 else ''}{length}"
    raise InputTooLong(
        f"This model's maximum context length is {limits.max_tokens} tokens. However, you requested 0 output tokens "
        f"and your prompt contains {about} input tokens, for a total of {about} tokens. Please reduce the length of "
        f"the input prompt or the number of requested output tokens. {TRUNCATION_HINT}",
        param="input_tokens",
        value=length,
    )


def too_many_chars_message(limits: Limits, length: int, max_chars: int) -> str:
    if limits.name != "max_model_len":
        return (
            f"Input of {length} characters exceeds {limits.name} {limits.max_tokens}: that many tokens have at most "
            f"{max_chars} characters; shorten the input or raise {limits.name}"
        )
    return (
        f"This model's maximum context length is {limits.max_tokens} tokens. However, you requested 0 output tokens "
        f"and your prompt contains {length} characters (more than {max_chars} characters, which is the upper bound for "
        f"{limits.max_tokens} input tokens). Please reduce the length of the input prompt or the number of requested "
        f"output tokens. {TRUNCATION_HINT}"
    )
