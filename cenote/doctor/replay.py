"""`cenote doctor --replay`: send recorded requests again and compare the replies with the recorded ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cenote.doctor.answers import AnswerError, from_base64
from cenote.doctor.findings import Report
from cenote.doctor.recording import decode_content, encode_content
from cenote.doctor.vector_checks import cosine
from cenote.errors import BadRequest
from cenote.utils.http_client import HttpClient, HttpReply

# ids, times and counts, which differ from request to request, and what depends on the machine
VOLATILE_KEYS = frozenset(
    ("id", "request_id", "created", "created_at", "modified_at", "expires_at", "unix", "usage", "usageMetadata")
    + ("total_duration", "load_duration", "prompt_eval_duration", "inference_status", "meta", "permission", "digest")
)
MIN_VECTOR_SIZE = 8  # shorter arrays of numbers are compared number by number
MIN_COSINE = 0.999
MAX_VALUE_DIFFERENCE = 0.01  # of the largest value of a vector
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-2, 1e-3  # of scores


def replay(client: HttpClient, path: Path) -> Report:
    """Return a finding for each record."""
    report = Report(client.url)
    for number, entry in read_records(path):
        headers = {name: value for name, value in entry.get("headers", {}).items() if name != "accept-encoding"}
        target = add_key(entry["path"], client.api_key)
        reply = client.send(entry["method"], target, decode_content(entry["request"]), headers)
        problem = find_difference(entry, reply)
        report.add_result(f"line {number}", f"{entry['method']} {entry['path']}", problem)
    if not report.findings:
        raise BadRequest(f"{path} has no recorded requests")
    return report


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                entry["method"], entry["path"], entry["status"], entry["request"], entry["reply"]
            except (ValueError, KeyError, TypeError):
                raise BadRequest(f"line {number} of {path} is not a record of cenote doctor --record") from None
            yield number, entry


def add_key(path: str, api_key: str | None) -> str:
    """Put the API key where the recording has left it out of a query string."""
    for name in ("?key=", "&key="):
        if path.endswith(name) or f"{name}&" in path:
            return path.replace(name, name + (api_key or ""), 1)
    return path


def find_difference(entry: dict[str, Any], reply: HttpReply) -> str | None:
    if entry["status"] != reply.status:
        return f"status {reply.status}, recorded {entry['status']}: {reply.excerpt(100)}"
    found, expected = encode_content(reply.content, reply.headers) or {}, entry["reply"] or {}
    if found.keys() != expected.keys():
        return f"the body is {next(iter(found), 'empty')}, recorded {next(iter(expected), 'empty')}"
    for kind, value in expected.items():
        if kind == "json":
            return compare_json(found[kind], value, "")
        if found[kind] != value:
            return "the body differs"
    return None


def compare_json(found: Any, expected: Any, where: str) -> str | None:
    """Return the first difference: vectors and scores by tolerance, everything else exactly."""
    place = where or "the reply"
    if is_number(found) and is_number(expected) and (isinstance(found, float) or isinstance(expected, float)):
        is_close = math.isclose(found, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
        return None if is_close else f"{place} is {found}, recorded {expected}"
    if type(found) is not type(expected):
        return f"{place} is {type(found).__name__}, recorded {type(expected).__name__}"
    if isinstance(expected, dict):
        return compare_objects(found, expected, where)
    if isinstance(expected, list):
        return compare_arrays(found, expected, where)
    if isinstance(expected, str) and found != expected and where.rpartition(".")[2].startswith(("embedding", "base64")):
        return compare_encoded(found, expected, place)
    return None if found == expected else f"{place} is {shorten(found)}, recorded {shorten(expected)}"


def compare_objects(found: dict[str, Any], expected: dict[str, Any], where: str) -> str | None:
    names, recorded = found.keys() - VOLATILE_KEYS, expected.keys() - VOLATILE_KEYS
    if names != recorded:
        return f"{where or 'the reply'} has other keys: {', '.join(sorted(names ^ recorded))}"
    for name in sorted(names):
        if problem := compare_json(found[name], expected[name], f"{where}.{name}".removeprefix(".")):
            return problem
    return None


def compare_arrays(found: list[Any], expected: list[Any], where: str) -> str | None:
    if len(found) != len(expected):
        return f"{where or 'the reply'} has {len(found)} items, recorded {len(expected)}"
    if len(expected) >= MIN_VECTOR_SIZE and all(map(is_number, expected)) and all(map(is_number, found)):
        return compare_vectors(np.array(found, float), np.array(expected, float), where or "the reply")
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        if problem := compare_json(one, other, f"{where}[{i}]"):
            return problem
    return None


def compare_encoded(found: str, expected: str, place: str) -> str | None:
    try:
        vectors = [from_base64(text, place) for text in (found, expected)]
    except AnswerError:
        return f"{place} differs"
    if len(vectors[0]) != len(vectors[1]):
        return f"{place} has {len(vectors[0])} values, recorded {len(vectors[1])}"
    return compare_vectors(vectors[0], vectors[1], place)


def compare_vectors(
    found: np.ndarray[Any, np.dtype[np.float64]], expected: np.ndarray[Any, np.dtype[np.float64]], place: str
) -> str | None:
    difference, largest = float(np.abs(found - expected).max()), float(np.abs(expected).max())
    similarity = cosine(found, expected)
    if difference == 0 or (similarity >= MIN_COSINE and difference <= MAX_VALUE_DIFFERENCE * max(largest, 1e-9)):
        return None
    return f"{place} differs: cosine {similarity:.6f}, largest difference {difference:.2e}"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
