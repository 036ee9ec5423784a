"""`meta` object of Cohere responses: API version, billed units, tokens and warnings."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from cenote.api.request_context import RequestContext


class ApiVersion(msgspec.Struct):
    version: str


class BilledUnits(msgspec.Struct):
    input_tokens: int | UnsetType = UNSET
    image_tokens: int | UnsetType = UNSET
    images: int | UnsetType = UNSET
    search_units: int | UnsetType = UNSET


class Tokens(msgspec.Struct):
    input_tokens: int
    output_tokens: int = 0


class Meta(msgspec.Struct):
    api_version: ApiVersion
    billed_units: BilledUnits
    tokens: Tokens
    warnings: list[str]


def make_meta(context: RequestContext, version: str, units: BilledUnits) -> Meta:
    warnings = [f"{context.num_truncated} inputs were too long and were truncated"] if context.num_truncated else []
    return Meta(ApiVersion(version), units, Tokens(context.num_tokens), warnings)
