"""Tokens of a tokenizer of OpenAI, in the file format of tiktoken: decodes ids that were made for another model."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from cenote.errors import BadRequest, LoadError
from cenote.protocol.input_types import TEXTS_ADVICE


@cache
def load_tiktoken_file(path: str) -> Mapping[int, bytes]:
    """Return the bytes of every token; a line of the file is a token in base64 and its id."""
    tokens: dict[int, bytes] = {}
    number = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                number += 1
                text, token = line.split()
                tokens[int(token)] = base64.b64decode(text, validate=True)
        if not tokens:
            raise ValueError
    except OSError as error:
        raise LoadError(f"tiktoken_file {path}: {error.strerror}") from None
    except ValueError:
        raise LoadError(
            f"tiktoken_file {path}: line {number} is not a token in base64 and its id, as in cl100k_base.tiktoken"
        ) from None
    return tokens


def decode_ids(ids: Sequence[int], path: str, max_bytes: int) -> bytes:
    """Return the text of token ids in UTF-8; a token may have many more bytes than its id has digits."""
    tokens = load_tiktoken_file(path)
    try:
        parts = [tokens[token] for token in ids]
    except KeyError as error:
        raise BadRequest(
            f"Token id {error.args[0]} is not in {Path(path).name}; {TEXTS_ADVICE}", param="input"
        ) from None
    if sum(map(len, parts)) > max_bytes:
        raise BadRequest(
            f"the text of the token ids has more than {max_bytes} bytes; split it, or raise --max-body-bytes",
            param="input",
        )
    return b"".join(parts)
