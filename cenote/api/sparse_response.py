"""Answers that are sparse vectors, and the answers of several tasks to one input."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from cenote.api.encoding import Float32Array, encode_base64, encode_json, to_float32_array
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import EncodingFields
from cenote.api.vector_response import NUMBERS_PER_YIELD
from cenote.errors import BadRequest
from cenote.protocol.params import Task
from cenote.protocol.results import PoolResult


class SparseVector(msgspec.Struct, omit_defaults=True):
    """The entries of the vocabulary that have a weight above zero, in order of id."""

    token_ids: list[int]
    weights: list[float] | str  # base64 where asked for
    tokens: list[str] | None = None  # as the vocabulary writes them; sent where a request asks with return_tokens


class TaskAnswers(msgspec.Struct, omit_defaults=True):
    """What each of the tasks that were asked for gives for one input."""

    embed: list[float] | str | None = None
    classify: list[float] | str | None = None
    token_embed: list[list[float]] | str | None = None
    token_classify: list[float | list[float]] | str | None = None
    sparse_embed: SparseVector | None = None


def check_not_binary(body: EncodingFields) -> None:
    """Refuse raw bytes before the model runs: token ids and weights, or several tasks, are no one row of numbers."""
    if body.encoding_format in ("bytes", "bytes_only"):
        raise BadRequest(
            f"encoding_format {body.encoding_format} has no room for sparse vectors or several tasks; ask for float "
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
    """For every input a `SparseVector`, or `TaskAnswers` where there are several tasks."""
    arrays = [
        {task: to_float32_array(rows) for task, rows in ({tasks[0]: item.data} | dict(item.extra_data)).items()}
        for item in results
    ]
    sparse = [answers["sparse_embed"] for answers in arrays if "sparse_embed" in answers]
    names = iter(await _fetch_token_strings(context, sparse) if return_tokens and sparse else [None] * len(sparse))
    made: list[Any] = []
    num_written = 0
    for answers in arrays:
        written: dict[str, Any] = {
            task: _make_sparse_vector(rows, body, next(names))
            if task == "sparse_embed"
            else _encode_numbers(rows, body)
            for task, rows in answers.items()
        }
        made.append(TaskAnswers(**written) if len(tasks) > 1 else written[tasks[0]])
        num_written += sum(rows.size for rows in answers.values())
        if num_written >= NUMBERS_PER_YIELD:
            num_written = 0
            await asyncio.sleep(0)
    return made


def _make_sparse_vector(rows: Float32Array, body: EncodingFields, tokens: list[str] | None) -> SparseVector:
    ids, weights = np.ascontiguousarray(rows.T)
    listed = msgspec.Raw(orjson.dumps(ids.astype(np.int32), option=orjson.OPT_SERIALIZE_NUMPY))
    return SparseVector(listed, _encode_numbers(weights, body), tokens)  # type: ignore[arg-type]


def _encode_numbers(array: Float32Array, body: EncodingFields) -> Any:
    if body.encoding_format == "base64":
        return encode_base64(array, body.embed_dtype or "float32", body.endianness or "native")
    return encode_json(array)


async def _fetch_token_strings(context: RequestContext, vectors: Sequence[Float32Array]) -> list[list[str] | None]:
    """The tokens of every vector, each asked for once."""
    ids, at = np.unique(np.concatenate([rows[:, 0] for rows in vectors]).astype(np.int32), return_inverse=True)
    tokenized = await context.tokenize(ids.tolist(), add_special_tokens=False, return_token_strs=True)
    strings = tokenized.token_strs or []
    ends = np.cumsum([len(rows) for rows in vectors]).tolist()
    return [
        [strings[place] for place in at[end - len(rows) : end].tolist()]
        for rows, end in zip(vectors, ends, strict=True)
    ]
