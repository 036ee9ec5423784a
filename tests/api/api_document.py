"""The OpenAPI document of an app, and whether a reply is as it says."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

from jsonschema import Draft202012Validator
from starlette.testclient import TestClient


class Document(dict[str, Any]):
    @cached_property
    def strict_components(self) -> Any:
        return forbid_extra_properties(self["components"])


@cache  # making the document takes longer than answering an example
def get_document(client: TestClient) -> Document:
    return Document(client.get("/openapi.json").json())


def assert_documented(reply: Any, path: str, method: str, document: Document) -> None:
    """Check that status, media type, all fields and headers of the reply are in the document."""
    documented = document["paths"][path][method]["responses"][str(reply.status_code)]
    media_type = reply.headers["content-type"].partition(";")[0]
    schema = documented["content"][media_type]["schema"]
    if media_type == "application/json":
        strict = forbid_extra_properties(schema) | {"components": document.strict_components}
        Draft202012Validator(strict).validate(reply.json())
    for name in documented["headers"]:
        assert reply.headers[name]


def forbid_extra_properties(schema: Any) -> Any:
    """Return the schema with `additionalProperties: false` in every object."""
    if isinstance(schema, list):
        return [forbid_extra_properties(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: forbid_extra_properties(value) for name, value in schema.items()}
    return strict | {"additionalProperties": False} if isinstance(strict.get("properties"), dict) else strict
