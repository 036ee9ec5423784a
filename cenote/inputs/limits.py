"""How long an input may be, to how many tokens it is cut or filled up, and the words of refusal."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.errors import BadRequest, InputTooLong
from cenote.protocol.requests import Tokenization

HOW_TO_TRUNCATE = "To cut long inputs instead, set truncate_prompt_tokens: -1 keeps as much as the model reads."


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an input may be. Without a name of its own, a limit is `max_model_len`."""

    max_tokens: int
    name: str = "max_model_len"  # or max_embed_len, where long texts are embedded in chunks
    bounded: bool = True  # False: any length
    chunked: bool = False  # what is longer than the model reads is no reason to cut


ANY_LENGTH = Limits(0, bounded=False)


def check_lengths(how: Tokenization, limits: Limits) -> None:
    """Refuse what would be refused for every input alike."""
    wanted_length(how, limits)
    padded_length(how, limits)


def wanted_length(how: Tokenization, limits: Limits) -> int | None:
    """The number of tokens an input is cut to; None leaves it whole."""
    if how.truncation_side not in (None, "left", "right"):
        raise BadRequest("`truncation_side` must be either 'left' or 'right'.", param="truncation_side")
    wanted = checked_count("truncate_prompt_tokens", how.truncate_prompt_tokens)
    if wanted is None or (wanted == -1 and limits.chunked):
        return None
    if wanted == -1:
        return limits.max_tokens
    if limits.bounded and wanted > limits.max_tokens:
        raise BadRequest(
            f"truncate_prompt_tokens={wanted} cannot be greater than max_model_len - max_output_tokens = "
            f"{limits.max_tokens}. Please request a smaller truncation size.",
            param="truncate_prompt_tokens",
        )
    return wanted


def padded_length(how: Tokenization, limits: Limits) -> int | None:
    """The tokens a short input is filled up to; one more than fits is cut or refused like any number above."""
    wanted = checked_count("pad_prompt_tokens", how.pad_prompt_tokens)
    if wanted is None:
        return None
    return limits.max_tokens if wanted == -1 else min(wanted, limits.max_tokens + 1)


def checked_count(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < -1):
        raise BadRequest(f"{name} is -1 or a number of tokens, got {value!r}", param=name)
    return value


def check_length(length: int, limits: Limits) -> None:
    if length == 0:
        raise BadRequest("The decoder prompt cannot be empty", param="input")
    if not limits.bounded or length <= limits.max_tokens:
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
        f"the input prompt or the number of requested output tokens. {HOW_TO_TRUNCATE}",
        param="input_tokens",
        value=length,
    )


def too_many_characters(limits: Limits, length: int, most: int) -> str:
    if limits.name != "max_model_len":
        return (
            f"Input of {length} characters exceeds {limits.name} {limits.max_tokens}: that many tokens have at most "
            f"{most} characters; shorten the input or raise {limits.name}"
        )
    return (
        f"This model's maximum context length is {limits.max_tokens} tokens. However, you requested 0 output tokens "
        f"and your prompt contains {length} characters (more than {most} characters, which is the upper bound for "
        f"{limits.max_tokens} input tokens). Please reduce the length of the input prompt or the number of requested "
        f"output tokens. {HOW_TO_TRUNCATE}"
    )
