"""The error for too long inputs says how to have them cut in the words of the client's API."""

from __future__ import annotations

from cenote.errors import InputTooLong, PoolingError
from cenote.inputs.limits import SERVER_ADVICE, SET_TRUNCATION


def adapt_advice(error: PoolingError, truncation: str | None) -> None:
    """Change the message for HTTP clients; `truncation`: what the client has to do, None if only the server can."""
    if not isinstance(error, InputTooLong) or truncation == SET_TRUNCATION or SET_TRUNCATION not in error.message:
        return
    before, _, after = str(error).partition(SET_TRUNCATION)
    if truncation is None:
        error.http_message = f"{before}A server cuts such inputs{after.partition(SERVER_ADVICE)[2]}"
    else:
        error.http_message = f"{before}{truncation}{after}"
