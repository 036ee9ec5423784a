"""Read vectors, scores and classes out of the replies of each API, as its clients do."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Scores = list[tuple[int, float]]  # index of a document and its score, in the order of the reply
Classes = list[dict[str, float]]  # score by label, for each text
Decode = Callable[[Any, str], Vector]  # from a value of the reply and its path


class AnswerError(Exception):
    """The reply has another shape than the client reads."""


def get(value: Any, *path: str | int) -> Any:
    """Return the value at a path of keys and indices, or raise an error that names the path."""
    for depth, key in enumerate(path):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise AnswerError(f"{format_path(path[: depth + 1])} is missing") from None
    return value


def get_list(value: Any, *path: str | int) -> list[Any]:
    found = get(value, *path)
    if not isinstance(found, list):
        raise AnswerError(f"{format_path(path)} is {type_name(found)}, expected an array")
    return found


def expect(value: Any, types: type | tuple[type, ...], *path: str | int) -> Any:
    """Return the value at a path if it has one of the types; a boolean is not a number."""
    found = get(value, *path)
    names = types if isinstance(types, tuple) else (types,)
    if not isinstance(found, types) or (isinstance(found, bool) and bool not in names):
        expected = " or ".join(name.__name__ for name in names)
        raise AnswerError(f"{format_path(path)} is {type_name(found)}, expected {expected}")
    return found


def format_path(path: Sequence[str | int]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".") or "the reply"


def type_name(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def to_vector(values: Any, where: str) -> Vector:
    if not isinstance(values, list) or not values:
        raise AnswerError(f"{where} is {type_name(values)}, expected an array of numbers")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise AnswerError(f"{where} has items that are not numbers")
    vector = np.array(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise AnswerError(f"{where} has values that are not finite")
    return vector


def from_base64(text: Any, where: str, dtype: str = "<f4") -> Vector:
    if not isinstance(text, str):
        raise AnswerError(f"{where} is {type_name(text)}, expected base64")
    try:
        content = base64.b64decode(text, validate=True)
        vector = np.frombuffer(content, dtype=dtype).astype(np.float64)
    except (binascii.Error, ValueError) as error:
        raise AnswerError(f"{where} is not base64 of {dtype}: {error}") from None
    if not len(vector) or not np.isfinite(vector).all():
        raise AnswerError(f"{where} has {len(vector)} values of {dtype}, not all finite or none at all")
    return vector


def to_score(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise AnswerError(f"{where} is {value!r}, expected a finite number")
    return float(value)


def bits_of(vector: Vector, *, offset: int = 0) -> Vector:
    """Return +1 and -1 for the bits of packed bytes; `offset` was subtracted from each byte."""
    packed = vector + offset
    if ((packed < 0) | (packed > 255) | (packed % 1 != 0)).any():
        raise AnswerError("packed bits are not bytes")
    return np.unpackbits(packed.astype(np.uint8)).astype(np.float64) * 2 - 1


# embeddings


def openai_rows(reply: Any) -> list[Any]:
    """Return the embeddings of an OpenAI reply; clients use the order of `data` and ignore `index`."""
    items = get_list(reply, "data")
    for position, _ in enumerate(items):
        index = get(reply, "data", position, "index")
        if index != position:
            raise AnswerError(f"data[{position}].index is {index!r}, expected {position}")
    expect(reply, str, "model")
    expect(reply, int, "usage", "total_tokens")
    return [get(reply, "data", position, "embedding") for position in range(len(items))]


def openai_vectors(reply: Any) -> list[Vector]:
    expect(reply, int, "usage", "prompt_tokens")
    return openai_float_vectors(reply)


def openai_rows_as(decode: Decode) -> Callable[[Any], list[Vector]]:
    """Return a reader of an OpenAI reply whose embeddings are encoded in another way, or whose usage has less."""
    return lambda reply: [decode(row, f"data[{i}].embedding") for i, row in enumerate(openai_rows(reply))]


openai_float_vectors = openai_rows_as(to_vector)  # as `openai_vectors`, for APIs whose usage has only `total_tokens`
openai_base64 = openai_rows_as(from_base64)
openai_base64_int8 = openai_rows_as(lambda row, where: from_base64(row, where, "i1"))
openai_base64_ubinary = openai_rows_as(lambda row, where: bits_of(from_base64(row, where, "u1")))
openai_ubinary = openai_rows_as(lambda row, where: bits_of(to_vector(row, where)))
openai_binary = openai_rows_as(lambda row, where: bits_of(to_vector(row, where), offset=128))


def rows_at(*path: str, decode: Decode = to_vector) -> Callable[[Any], list[Vector]]:
    """Return a reader of an array of vectors at a path."""

    def read(reply: Any) -> list[Vector]:
        where = format_path(path)
        return [decode(row, f"{where}[{i}]") for i, row in enumerate(get_list(reply, *path))]

    return read


def row_at(*path: str | int) -> Callable[[Any], list[Vector]]:
    """Return a reader of one vector at a path."""
    return lambda reply: [to_vector(get(reply, *path), format_path(path))]


def each_at(path: Sequence[str], inner: Sequence[str | int]) -> Callable[[Any], list[Vector]]:
    """Return a reader of an array of objects, each of which has a vector at the inner path."""

    def read(reply: Any) -> list[Vector]:
        items = get_list(reply, *path)
        where = format_path(path)
        return [to_vector(get(item, *inner), f"{where}[{i}]{format_path(inner)}") for i, item in enumerate(items)]

    return read


COHERE_DECODERS: dict[str, Decode] = {
    "base64": from_base64,
    "uint8": lambda row, where: to_vector(row, where) - 127.5,
    "binary": lambda row, where: bits_of(to_vector(row, where), offset=128),
    "ubinary": lambda row, where: bits_of(to_vector(row, where)),
}


def cohere_type(name: str) -> Callable[[Any], list[Vector]]:
    """Return a reader of one of the `embedding_types` of Cohere."""
    return rows_at("embeddings", name, decode=COHERE_DECODERS.get(name, to_vector))


# scores


def ranked(path: Sequence[str], score: str) -> Callable[[Any], Scores]:
    """Return a reader of an array of objects with an index and a score, best first."""

    def read(reply: Any) -> Scores:
        items = get_list(reply, *path)
        where = format_path(path)
        return [
            (expect(item, int, "index"), to_score(get(item, score), f"{where}[{i}].{score}"))
            for i, item in enumerate(items)
        ]

    return read


def scores_at(path: Sequence[str], *inner: str) -> Callable[[Any], Scores]:
    """Return a reader of scores in the order of the documents."""

    def read(reply: Any) -> Scores:
        items = get_list(reply, *path)
        where = format_path(path)
        return [(i, to_score(get(item, *inner), f"{where}[{i}]")) for i, item in enumerate(items)]

    return read


# classes


def vllm_classes(reply: Any) -> Classes:
    results: Classes = []
    for i, item in enumerate(get_list(reply, "data")):
        probs = to_vector(get(item, "probs"), f"data[{i}].probs")
        if expect(item, int, "num_classes") != len(probs):
            raise AnswerError(f"data[{i}].num_classes is {item['num_classes']}, but there are {len(probs)} probs")
        best = {} if item.get("label") is None else {str(item["label"]): float(probs.max())}
        results.append(best)
    return results


def labelled(items: Any, where: str) -> dict[str, float]:
    if not isinstance(items, list) or not items:
        raise AnswerError(f"{where} is {type_name(items)}, expected an array of labels with scores")
    return {expect(item, str, "label"): to_score(get(item, "score"), f"{where}.score") for item in items}


def nested_classes(*path: str) -> Callable[[Any], Classes]:
    """Return a reader of a list of labels with scores for each text."""

    def read(reply: Any) -> Classes:
        return [labelled(items, f"{format_path(path)}[{i}]") for i, items in enumerate(get_list(reply, *path))]

    return read


def flat_classes(reply: Any) -> Classes:
    return [labelled(reply, "the reply")]


def cohere_classes(reply: Any) -> Classes:
    items = get_list(reply, "classifications")
    return [
        {name: to_score(get(value, "confidence"), f"labels.{name}") for name, value in get(item, "labels").items()}
        for item in items
    ]


def moderation_classes(reply: Any) -> Classes:
    items = get_list(reply, "results")
    for item in items:
        expect(item, bool, "flagged")
    return [{name: to_score(value, name) for name, value in get(item, "category_scores").items()} for item in items]


# other replies


def has(*paths: Sequence[str | int]) -> Callable[[Any], None]:
    """Return a check that these paths exist."""

    def check(reply: Any) -> None:
        for path in paths:
            get(reply, *path)

    return check


def anything(reply: Any) -> None:
    """Accept every reply: the client reads only the status."""


def sparse_rows(reply: Any) -> None:
    for i, row in enumerate(get_list(reply)):
        if not isinstance(row, list):
            raise AnswerError(f"[{i}] is {type_name(row)}, expected an array of index and value")
        for item in row:
            expect(item, int, "index")
            to_score(get(item, "value"), f"[{i}].value")
