"""One request of a known client: what it sends, and how it reads the reply.

Strings of a body that begin with `$` stand for the model, texts, the query and documents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from cenote.utils.http_client import JSON_HEADERS

Kind = Literal["vectors", "scores", "classes", "other"]
# how vectors compare with those of the first request of the table that is answered:
# equal: the same values; direction: perhaps of another length; int8, bits: quantized; nearest: perhaps with a prompt
Comparison = Literal["equal", "direction", "int8", "bits", "nearest"]


@dataclass(frozen=True)
class RequestInputs:
    """What the placeholders stand for."""

    model: str
    api_key: str | None = None
    texts: Sequence[str] = ()
    query: str = ""
    documents: Sequence[str] = ()


@dataclass(frozen=True)
class Each:
    """A list with one item for each text or document; `$ITEM` in the template stands for it."""

    source: Literal["texts", "documents"]
    template: Any


@dataclass(frozen=True)
class ClientRequest:
    api: str
    client: str
    path: str
    body: Any  # None for GET requests
    kind: Kind
    reader: Callable[[Any], Any]
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_HEADERS)
    comparison: Comparison = "equal"
    is_unit: bool = False  # whether the API promises vectors of length 1
    is_ranked: bool = True  # whether scores are sorted, best first
    is_probability: bool = False  # whether the API promises scores between 0 and 1
    num_inputs: int | None = None  # texts that the body has; None: all
    is_json: bool = True  # whether the client needs a JSON body

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    @property
    def takes_lists(self) -> bool:
        return self.num_inputs is None

    def make_path(self, inputs: RequestInputs) -> str:
        return self.path.replace("{model}", quote(inputs.model, safe=""))

    def make_body(self, inputs: RequestInputs) -> Any:
        return fill(self.body, inputs)

    def make_headers(self, inputs: RequestInputs) -> dict[str, str]:
        """Return the headers; those with the API key only if there is one."""
        items = ((name, value.replace("$KEY", inputs.api_key or "")) for name, value in self.headers.items())
        return {name: value for name, value in items if value}


def fill(value: Any, inputs: RequestInputs, item: str = "") -> Any:
    """Replace the placeholders in a body."""
    if isinstance(value, Each):
        return [fill(value.template, inputs, text) for text in getattr(inputs, value.source)]
    if isinstance(value, dict):
        return {key: fill(inner, inputs, item) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, inputs, item) for inner in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    lists = {"$TEXTS": inputs.texts, "$DOCUMENTS": inputs.documents}
    if value in lists:
        return list(lists[value])
    first = inputs.texts[0] if inputs.texts else ""
    whole = {"$QUERY": inputs.query, "$TEXT": first, "$ITEM": item}
    return whole[value] if value in whole else value.replace("$MODEL", inputs.model)


@dataclass(frozen=True)
class Api:
    """Makes the requests of its clients, to the usual path unless they have another one."""

    name: str
    path: str = ""

    def vectors(self, client: str, body: Any, reader: Callable[[Any], Any], **more: Any) -> ClientRequest:
        return self._make("vectors", client, body, reader, **more)

    def scores(self, client: str, body: Any, reader: Callable[[Any], Any], **more: Any) -> ClientRequest:
        return self._make("scores", client, body, reader, **more)

    def classes(self, client: str, body: Any, reader: Callable[[Any], Any], **more: Any) -> ClientRequest:
        return self._make("classes", client, body, reader, is_probability=self.name != "vLLM", **more)

    def other(self, client: str, body: Any, reader: Callable[[Any], Any], **more: Any) -> ClientRequest:
        return self._make("other", client, body, reader, **more)

    def _make(
        self, kind: Kind, client: str, body: Any, reader: Callable[[Any], Any], *, path: str = "", **more: Any
    ) -> ClientRequest:
        return ClientRequest(self.name, client, path or self.path, body, kind, reader, **more)


INPUTS: dict[str, Any] = {"model": "$MODEL", "input": "$TEXTS"}  # as the clients of OpenAI and many others send them
NO_TYPE: dict[str, str] = {}  # clients that send JSON without Content-Type
AZURE_KEY = {**JSON_HEADERS, "api-key": "$KEY"}
GOOGLE_KEY = {**JSON_HEADERS, "x-goog-api-key": "$KEY"}
