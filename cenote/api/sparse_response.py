"""Response entries with sparse vectors, or with the results of several tasks for one input."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from cenote.api.encoding import Float32Array, encode_base64, encode_json
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import EncodingFields
from cenote.api.vector_response import NUMBERS_PER_YIELD
from cenote.errors import BadRequest
from cenote.protocol.params import Task
from cenote.protocol.results import PoolResult


class SparseVector(msgspec.Struct, omit_defaults=True):
    """Vocabulary entries with a weight above zero, in order of token id."""

    token_ids: list[int]
    weights: list[float] | str  # base64 string if requested
    tokens: list[str] | None = None  # token strings; sent if the request sets return_tokens


class TaskAnswers(msgspec.Struct, omit_defaults=True):
    """Results of all requested tasks for one input."""

    embed: list[float] | str | None = None
    classify: list[float] | str | None = None
    token_embed: list[list[float]] | str | None = None
    token_classify: list[float | list[float]] | str | None = None
    sparse_embed: SparseVector | None = None


def check_not_binary(body: EncodingFields) -> None:
    """Raise for binary formats, before the model runs: they cannot hold sparse vectors or several tasks."""
    if body.encoding_format in ("bytes", "bytes_only"):
        raise BadRequest(
            f"encoding_format={body.encoding_format} does not support sparse vectors or several tasks; expected float "
            "or base64",
            param="encoding_format",
        )


async def make_sparse_results(
    context: RequestContext,
    body: EncodingFields,
    tasks: Sequence[Task],
    results: Sequence[PoolResult],
    *,
    return_tokens: bool | None,
) -> list[Any]:
    """Return for every input a `SparseVector`, or `TaskAnswers` if there are several tasks."""
    arrays = [{tasks[0]: item.data} | dict(item.extra_data) for item in results]
    sparse = [by_task["sparse_embed"] for by_task in arrays if "sparse_embed" in by_task]
    tokens = iter(await _fetch_token_strings(context, sparse) if return_tokens and sparse else [None] * len(sparse))
    entries: list[Any] = []
    num_encoded = 0
    for by_task in arrays:
        encoded: dict[str, Any] = {
            task: _make_sparse_vector(rows, body, next(tokens))
            if task == "sparse_embed"
            else _encode_numbers(rows, body)
            for task, rows in by_task.items()
        }
        entries.append(TaskAnswers(**encoded) if len(tasks) > 1 else encoded[tasks[0]])
        num_encoded += sum(rows.size for rows in by_task.values())
        if num_encoded >= NUMBERS_PER_YIELD:
            num_encoded = 0
            await asyncio.sleep(0)
    return entries


def _make_sparse_vector(rows: Float32Array, body: EncodingFields, tokens: list[str] | None) -> SparseVector:
    ids, weights = np.ascontiguousarray(rows.T)
    ids_json = msgspec.Raw(orjson.dumps(ids.astype(np.int32), option=orjson.OPT_SERIALIZE_NUMPY))
    return SparseVector(ids_json, _encode_numbers(weights, body), tokens)  # type: ignore[arg-type]


def _encode_numbers(array: Float32Array, body: EncodingFields) -> Any:
    if body.encoding_format == "base64":
        return encode_base64(array, *body.byte_format)
    return encode_json(array)


async def _fetch_token_strings(context: RequestContext, vectors: Sequence[Float32Array]) -> list[list[str] | None]:
    """Return the token strings of every vector; each distinct id is converted once."""
    ids, inverse = np.unique(np.concatenate([rows[:, 0] for rows in vectors]).astype(np.int32), return_inverse=True)
    tokenized = await context.tokenize(ids.tolist(), add_special_tokens=False, return_token_strs=True)
    strings = tokenized.token_strs or []
    ends = np.cumsum([len(rows) for rows in vectors]).tolist()
    return [
        [strings[index] for index in inverse[end - len(rows) : end].tolist()]
        for rows, end in zip(vectors, ends, strict=True)
    ]
