"""Everything that can go wrong on purpose.

PoolingError            500
├── BadRequest          400   the caller must change the request
│   ├── InvalidBody           not JSON, or not of the shape that the route reads
│   ├── InputTooLong
│   └── Unsupported           this model cannot do that
├── Unauthorized        401   no API key, or a wrong one
├── UnknownModel        404
├── BodyTooLarge        413
├── NotJSON             415   a body in a format that nobody here reads
├── Overloaded          429   the same request may work later
├── NumericalError      500   the model gave NaN or infinity for this input
├── NotOffered          501   a route for a task that the loaded model does not have
├── NotReady            503   the model is still being loaded, or the server is about to stop
├── EngineStopped       503   the engine ended before the answer came
└── LoadError                 raised at start-up, never while serving
"""

from __future__ import annotations


class PoolingError(Exception):
    """The root: whatever Cenote raises on purpose is one of these."""

    status = 500

    def __init__(self, message: str, *, param: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.value = value
        self.index: int | None = None  # which of the inputs it was, where there are several

    def __str__(self) -> str:
        known = [
            f"{key}={item}" for key, item in (("parameter", self.param), ("value", self.value)) if item is not None
        ]
        return f"{self.message} ({', '.join(known)})" if known else self.message


class BadRequest(PoolingError, ValueError):
    """The caller must change the request; also a ValueError, so that either `except` catches it."""

    status = 400


class InvalidBody(BadRequest):
    """A body that is not JSON, or not of the shape that the route reads."""


class InputTooLong(BadRequest):
    """More tokens or characters than the model reads."""


class Unsupported(BadRequest):
    """A request that is fine in itself, to a model that cannot do it."""


class Unauthorized(PoolingError):
    """A request without a key, or with one that nobody knows."""

    status = 401


class BodyTooLarge(PoolingError):
    """More bytes than the server reads for one request."""

    status = 413


class NotJSON(PoolingError):
    """A body in a format that nobody here reads."""

    status = 415


class NotOffered(PoolingError):
    """A route for a task that the loaded model does not have."""

    status = 501


class NotReady(PoolingError):
    """The model is still being loaded, or the server is about to stop."""

    status = 503


class UnknownModel(PoolingError, LookupError):
    """A model name nobody serves here."""

    status = 404


class Overloaded(PoolingError):
    """No room now; the same request may work later."""

    status = 429


class NumericalError(PoolingError):
    """The model's answer to this one input was not a finite number."""


class EngineStopped(PoolingError):
    """The engine ended, by itself or on request, before the answer came."""

    status = 503


class LoadError(PoolingError, ValueError):
    """A model that cannot be loaded, in one line that names the file or the option."""
