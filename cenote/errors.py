"""Exceptions, with the HTTP status that the server returns for each.

PoolingError            500
├── BadRequest          400   the caller must change the request
│   ├── InvalidBody           not JSON, or not matching the schema of the route
│   │   └── NotJSON           unsupported content type
│   ├── InputTooLong
│   ├── TruncationTooLong     truncate_prompt_tokens above the maximum length
│   └── Unsupported           the loaded model does not support the request
│       └── NotOffered        route of a task that the loaded model does not support
├── Unauthorized        401   missing or unknown API key
├── Forbidden           403   the API key may not do this
├── UnknownModel        404
├── RouteNotFound       404   route that does not exist for the loaded model
├── BodyTooLarge        413
├── Overloaded          429   too much in flight; the request can be retried
├── NumericalError      500   the model output contains NaN or infinity
├── InputCrashedEngine  500   the engine process died twice while it computed this input
├── NotReady            503   the model is loading, or the server is shutting down
├── OutOfResources      503   the memory or the descriptors of the server are nearly used up
├── EngineStopped       503   the engine stopped before the request finished
├── DeadlineExceeded    504   the deadline of the request has passed, or would
└── LoadError                 raised at startup, never while serving
"""

from __future__ import annotations


class PoolingError(Exception):
    """Base class of all errors that Cenote raises deliberately."""

    status = 500
    http_message: str | None = None  # in HTTP responses, if it is not the message: vLLM's text, or one without details
    code: str | None = None  # field `error.code` of HTTP responses, if it is not the status
    http_detail: str | None = None  # field `detail` of HTTP responses, if it is not the message
    index: int | None

    def __init__(
        self, message: str, *, param: str | None = None, value: object = None, parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param or parameter
        self.value = value
        self.index = None  # of the input that failed, in requests with several

    @property
    def parameter(self) -> str | None:
        """The name of `param` in vLLM."""
        return self.param

    def __str__(self) -> str:
        details = [
            f"{key}={item}" for key, item in (("parameter", self.param), ("value", self.value)) if item is not None
        ]
        return f"{self.message} ({', '.join(details)})" if details else self.message


class BadRequest(PoolingError, ValueError):
    """The request is invalid; also a ValueError, which is what vLLM raises."""

    status = 400


class InvalidBody(BadRequest):
    """The body is not JSON, or does not match the schema of the route.

    `kind` is pydantic's name of a schema error, such as "missing"; None for errors that vLLM finds after parsing.
    """

    def __init__(
        self, message: str, *, param: str | None = None, value: object = None, kind: str | None = None
    ) -> None:
        super().__init__(message, param=param, value=value)
        self.kind = kind


class NotJSON(InvalidBody):
    """The content type of the body is not supported."""


class InputTooLong(BadRequest):
    """The input has more tokens or characters than the model accepts."""


class TruncationTooLong(BadRequest):
    """`truncate_prompt_tokens` is greater than the maximum length of the model."""

    http_message = (
        "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size."
    )


class Unsupported(BadRequest):
    """The request is valid, but the loaded model does not support it."""


class Unauthorized(PoolingError):
    """The API key is missing or unknown."""

    status = 401


class Forbidden(PoolingError):
    """The API key is valid, but may not do this."""

    status = 403


class BodyTooLarge(PoolingError):
    """The body, or what the request needs, exceeds a limit of the server."""

    status = 413


class NotOffered(Unsupported):
    """The route belongs to a task that the loaded model does not support."""


class NotReady(PoolingError):
    """The model is loading, or the server is shutting down."""

    status = 503


class UnknownModel(PoolingError, LookupError):
    """The requested model or adapter is not served."""

    status = 404


class RouteNotFound(PoolingError):
    """The route does not exist for the loaded model."""

    status = 404
    http_detail = "Not Found"


class Overloaded(PoolingError):
    """Too much is in flight; the same request may succeed later."""

    status = 429
    retry_after_s = 1.0  # when it may


class NumericalError(PoolingError):
    """The model output for this input contains NaN or infinity."""


class InputCrashedEngine(PoolingError):
    """Engine processes died while this input was on the device, also when it was alone there; it is not run again."""

    code = "input_crashed_engine"
    _index: int | None = None

    @property
    def index(self) -> int | None:
        return self._index

    @index.setter
    def index(self, index: int | None) -> None:
        """Set the index in another list of inputs; the message names it."""
        if self._index is not None:
            name = "an input" if index is None else f"input {index}"
            self.message = self.message.replace(f"input {self._index} ", f"{name} ", 1)
        self._index = index


class EngineStopped(PoolingError):
    """The engine crashed or was stopped before the request finished."""

    status = 503


class EngineHung(EngineStopped):
    """The engine has stopped itself, as a batch did not finish in time."""


class OutOfResources(PoolingError):
    """The system grants the server no more memory or descriptors for now; the same request may succeed later."""

    status = 503


class DeadlineExceeded(PoolingError):
    """The deadline of the request has passed, or would pass before it is computed."""

    status = 504

    @classmethod
    def after(cls, waited_s: float, late_s: float) -> DeadlineExceeded:
        return cls(
            f"deadline exceeded: the request waited {waited_s:.3f} s, and its deadline passed {late_s:.3f} s ago; what "
            "had not run was dropped. Raise the timeout of the request, or send fewer at a time"
        )


class LoadError(PoolingError, ValueError):
    """The model cannot be loaded; the message is one line that names the file or option."""


def explain_no_generation(advice: str) -> str:
    """Return what a route or method says that generates text in other software; `advice`: what to use instead."""
    return (
        "Cenote generates no text. It computes embeddings, similarities and relevance scores, classes, and results per "
        f"token; {advice}"
    )


def make_internal_error(summary: str, error: BaseException, kind: type[PoolingError] = PoolingError) -> PoolingError:
    """Return the error for an unexpected exception: Python callers see its text, HTTP clients only the summary."""
    internal = kind(f"{summary}: {type(error).__name__}: {error}")
    internal.http_message = f"{summary}; the reason is in the server log"
    return internal


def make_exited_error() -> EngineStopped:
    """Return the error of a call that is not sent to another engine process."""
    return EngineStopped("the engine process exited before it responded; retry shortly")
