"""Dialect: a vendor's routes, each with its body type and the handler that translates it for the engine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, get_type_hints

from cenote.api.plain_route import PlainRoute, read_reply_type, read_summary
from cenote.api.replies import JSON_MEDIA_TYPE, ErrorBody, ErrorEncoder, encode_default_error
from cenote.api.request_body import JsonType
from cenote.api.request_context import RequestContext
from cenote.errors import InputTooLong, PoolingError
from cenote.inputs.limits import SERVER_ADVICE, SET_TRUNCATION
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Task

Handler = Callable[[Any, RequestContext], Coroutine[Any, Any, Any]]  # returns a Reply, or the body of one

ANY_TYPE: frozenset[JsonType] = frozenset(("string", "number", "boolean", "array", "object"))
BodyKeys = Mapping[str, frozenset[JsonType]]


class Need(NamedTuple):
    """What a model has to be able to do for a route."""

    api_name: str  # in the error "The model does not support ... API"
    is_met: Callable[[ModelInfo], bool]


def has_task(task: Task) -> Callable[[ModelInfo], bool]:
    return lambda model_info: task in model_info.tasks


ANY_MODEL = Need("", lambda model_info: True)
EMBEDDINGS = Need("Embeddings", has_task("embed"))
TOKEN_EMBEDDINGS = Need("Token Embeddings", has_task("token_embed"))
SPARSE_EMBEDDINGS = Need("Sparse Embeddings", has_task("sparse_embed"))
CLASSIFICATION = Need("Classification", has_task("classify"))
SCORES = Need("Rerank (Score)", lambda model_info: bool(model_info.score_types))


def read_model_name(body: Any) -> str | None:
    return getattr(body, "model", None)


def has_keys(*names: str, **types: JsonType | Sequence[JsonType]) -> BodyKeys:
    """Return the rule for bodies with all of these keys, of any type or of the given ones."""
    typed = {name: frozenset([given] if isinstance(given, str) else given) for name, given in types.items()}
    return dict.fromkeys(names, ANY_TYPE) | typed


@dataclass(slots=True)
class Route:
    """One POST endpoint, under one or several paths.

    Of a path that several routes have, a route takes the bodies that `body_keys` describes. The routes are tried in the
    order of the table of dialects; the one without `body_keys` takes all other bodies.
    """

    handler: Handler  # called when the model is selected that the body names
    paths: Sequence[str]  # one or several: the first is its name in metrics and documents; {model}: for a model name
    _: KW_ONLY
    example: Mapping[str, Any]  # request body for the documentation page
    needs: Need = ANY_MODEL
    body_keys: BodyKeys | None = None  # keys, not null, and their types; None: any body
    read_model_name: Callable[[Any], str | None] | None = read_model_name  # None: the handler selects the model
    needs_admin: bool = False  # an admin key; without one nobody may use it
    is_absent_if_unsupported: bool = False  # respond with 404 instead of 400, as vLLM's scoring routes
    can_be_binary: bool = False  # whether it can respond with application/octet-stream
    media_type: str = JSON_MEDIA_TYPE  # of the response
    stream_media_type: str | None = None  # of the response, if the request asks for a stream
    body_type: Any = None  # Raw if the handler parses it; None: that of its parameter `body`
    documented_body_type: Any = None  # types of a Raw body, for the OpenAPI document
    reply_type: Any = None  # type of the response body, for the OpenAPI document; None: what the handler returns
    summary: str = ""  # "": that of the handler

    def __post_init__(self) -> None:
        self.paths = (self.paths,) if isinstance(self.paths, str) else self.paths
        self.body_type = self.body_type or get_type_hints(self.handler)["body"]
        self.summary = self.summary or read_summary(self.handler)
        self.reply_type = self.reply_type or read_reply_type(self.handler)

    @property
    def api_name(self) -> str:
        """What errors call the API of the route."""
        return self.needs.api_name

    def is_supported(self, model_info: ModelInfo) -> bool:
        return self.needs.is_met(model_info)


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    routes: Sequence[Route]
    plain_routes: Sequence[PlainRoute] = ()
    encode_error: ErrorEncoder = encode_default_error  # for all errors on its paths
    error_type: Any = ErrorBody  # type of the error body, for the OpenAPI document
    error_statuses: Sequence[int] = ()  # besides those of all dialects
    truncation: str | None = SET_TRUNCATION  # what a client does to have inputs cut; None: it cannot
    generation_paths: Sequence[str] = ()  # where the vendor generates text, for an error that explains it


def adapt_advice(error: PoolingError, truncation: str | None) -> None:
    """Change the message for HTTP clients; `truncation`: what the client has to do, None if only the server can."""
    if not isinstance(error, InputTooLong) or truncation == SET_TRUNCATION or SET_TRUNCATION not in error.message:
        return
    before, _, after = str(error).partition(SET_TRUNCATION)
    if truncation is None:
        error.http_message = f"{before}A server cuts such inputs{after.partition(SERVER_ADVICE)[2]}"
    else:
        error.http_message = f"{before}{truncation}{after}"
