"""Encode and decode errors that travel between processes; imports no numpy, which takes long when the server starts."""

from __future__ import annotations

from cenote import errors
from cenote.api.wire.messages import SerializedError
from cenote.errors import PoolingError

ERROR_CLASSES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PoolingError)
}


def serialize_error(error: BaseException) -> SerializedError:
    if not isinstance(error, PoolingError):
        return SerializedError("", escape_surrogates(f"{type(error).__name__}: {error}"))
    class_name = next(base.__name__ for base in type(error).__mro__ if ERROR_CLASSES.get(base.__name__) is base)
    value = None if error.value is None else escape_surrogates(str(error.value))
    message = vars(error).get("http_message") or error.message  # details of an internal error stay in this process
    return SerializedError(class_name, escape_surrogates(message), error.param, value, error.index)


def escape_surrogates(text: str) -> str:
    """Return the text with lone surrogates as escapes: a message about an invalid text may quote it."""
    return text.encode(errors="backslashreplace").decode()


def deserialize_error(serialized: SerializedError) -> Exception:
    """Return the same error, so that the HTTP response has the same message and status."""
    if not serialized.class_name:
        return RuntimeError(f"the engine process failed: {serialized.message}")
    error = ERROR_CLASSES[serialized.class_name](serialized.message, param=serialized.param, value=serialized.value)
    error.index = serialized.index
    return error
