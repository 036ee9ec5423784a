"""Checks of embeddings: batches, base64, dimensions, normalization, reference vectors."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from cenote.doctor.answers import AnswerError, Vector, openai_base64
from cenote.doctor.client_checks import ServedRequests
from cenote.doctor.client_request import ClientRequest
from cenote.doctor.findings import Report
from cenote.doctor.server import Server, read_reply
from cenote.doctor.texts import REFERENCE_TEXTS
from cenote.doctor.vector_checks import cosine, find_cosine_problem, find_difference, find_order_problem

# float32 as JSON and as base64 is the same number; float16 differs by 1e-5 and more
MAX_ENCODING_DIFFERENCE = 1e-6
# in the vocabulary cl100k_base
HELLO_WORLD, HELLO_WORLD_IDS = "hello world", [15339, 1917]
MIN_REFERENCE_COSINE = 0.97  # int8 weights reach 0.98
GOOD_REFERENCE_COSINE = 0.9999
REFERENCE_FILE = "reference_vectors.json"


def check_embeddings(server: Server, served: ServedRequests, report: Report) -> None:
    request = served.vectors
    if request is None or not served.baseline:
        return
    for check in (check_batch, check_dimensions, check_base64, check_token_ids, check_normalization, check_reference):
        try:
            check(server, request, served, report)
        except AnswerError as error:
            report.add(request.api, check.__name__.removeprefix("check_"), "fail", str(error))


def check_batch(server: Server, request: ClientRequest, served: ServedRequests, report: Report) -> None:
    """A text has the same vector alone and beside others of other lengths."""
    single = [server.embed(request, [text])[0] for text in REFERENCE_TEXTS]
    batch = server.embed(request, REFERENCE_TEXTS)
    report.measured["dimensions"] = len(single[0])
    if len({len(vector) for vector in [*single, *batch]}) != 1:
        problem: str | None = "vectors of one batch have different dimensions"
    else:
        problem = find_order_problem(batch, single) or find_difference(batch, single)
    difference = max(float(np.abs(one - other).max()) for one, other in zip(single, batch, strict=True))
    report.add_result(request.api, "batch equals single", problem, f"largest difference {difference:.1e}")


def check_base64(server: Server, request: ClientRequest, served: ServedRequests, report: Report) -> None:
    """base64 has the same numbers as JSON; what two equal requests differ by is allowed twice."""
    if request.api != "OpenAI":
        return
    text = list(REFERENCE_TEXTS[1:2])
    floats = [server.embed(request, text)[0] for _ in range(2)]
    reply = server.client.post(request.path, {"input": text, "model": server.model, "encoding_format": "base64"})
    if not reply.is_ok:
        report.add(request.api, "base64 equals float", "absent", f"{reply.status}: {reply.excerpt()}")
        return
    decoded = openai_base64(reply.json)[0]
    noise = float(np.abs(floats[0] - floats[1]).max())
    allowed = max(MAX_ENCODING_DIFFERENCE, 2 * noise) * max(1.0, float(np.abs(floats[0]).max()))
    problem = None
    if len(decoded) != len(floats[0]):
        problem = f"base64 has {len(decoded)} values, float {len(floats[0])}"
    elif (difference := float(np.abs(decoded - floats[0]).max())) > allowed:
        problem = f"lossy base64: values differ by up to {difference:.1e}, two equal requests by {noise:.1e}"
    report.add_result(request.api, "base64 equals float", problem)


def check_token_ids(server: Server, request: ClientRequest, served: ServedRequests, report: Report) -> None:
    """Ids of OpenAI's tokenizer, which LangChain sends by default, are refused, decoded, or answered with a warning."""
    if request.api != "OpenAI":
        return
    reply = server.send(request, input=[HELLO_WORLD_IDS])
    if 400 <= reply.status < 500:
        report.add(request.api, "token ids", "ok", f"ids of OpenAI's tokenizer are refused ({reply.status})")
        return
    vector: Vector = read_reply(request, reply)[0]
    similarity = cosine(vector, server.embed(request, [HELLO_WORLD])[0])
    if similarity > GOOD_REFERENCE_COSINE:
        report.add(request.api, "token ids", "ok", "ids of OpenAI's tokenizer are decoded")
    elif "warning" in reply.headers:
        report.add(request.api, "token ids", "ok", "ids of OpenAI's tokenizer are answered with the header warning")
    else:
        problem = (
            "ids of OpenAI's tokenizer, which LangChain sends unless check_embedding_ctx_length=False, are read as "
            f"other tokens, and nothing says so: cosine {similarity:.4f} with the right vector"
        )
        report.add(request.api, "token ids", "fail", problem)


def check_dimensions(server: Server, request: ClientRequest, served: ServedRequests, report: Report) -> None:
    """`dimensions` returns vectors of that size, the first values of the whole one, or an error; never another size."""
    if request.api not in ("OpenAI", "Ollama", "TEI"):
        return
    whole = served.baseline[0]
    size = len(whole) // 2
    reply = server.send(request, dimensions=size)
    if 400 <= reply.status < 500:
        report.add(request.api, "dimensions", "ok", f"dimensions={size} is refused ({reply.status})")
        return
    vector: Vector = read_reply(request, reply)[0]
    problem = None
    if len(vector) != size:
        problem = f"dimensions={size} returns {len(vector)} values without an error"
    elif cosine(vector, whole[:size]) < 0.999:
        problem = f"dimensions={size} does not return the first {size} values of the vector"
    report.add_result(request.api, "dimensions", problem, f"dimensions={size} returns {size} values")


def check_normalization(server: Server, request: ClientRequest, served: ServedRequests, report: Report) -> None:
    norms = [float(np.linalg.norm(vector)) for vector in served.baseline]
    is_unit = max(abs(norm - 1) for norm in norms) < 0.01
    report.measured["normalized"] = is_unit
    status = "normalized" if is_unit else f"not normalized: lengths {min(norms):.3f} to {max(norms):.3f}"
    report.add(request.api, "normalization", "ok", status)


def check_reference(server: Server, request: ClientRequest, served: ServedRequests, report: Report) -> None:
    reference = find_reference(server.model)
    if reference is None:
        return
    vectors = server.embed(request, REFERENCE_TEXTS)
    problem = find_reference_problem(vectors, reference)
    worst = min(cosine(one, other) for one, other in zip(vectors, reference.vectors, strict=True)) if not problem else 0
    is_good = worst >= GOOD_REFERENCE_COSINE
    precise = "" if is_good else " (reduced precision)"
    report.add_result(request.api, "reference vectors", problem, f"{reference.model}: cosine {worst:.6f}{precise}")


def find_reference_problem(vectors: list[Vector], reference: ReferenceVectors) -> str | None:
    size = len(reference.vectors[0])
    if any(len(vector) != size for vector in vectors):
        return f"{reference.model} has {size} dimensions, got {len(vectors[0])}"
    problem = find_cosine_problem(vectors, reference.vectors, MIN_REFERENCE_COSINE)
    if problem:
        worst = min(cosine(one, other) for one, other in zip(vectors, reference.vectors, strict=True))
        for name, others in reference.other_pooling.items():
            if find_cosine_problem(vectors[: len(others)], others, MIN_REFERENCE_COSINE) is None:
                return f"wrong pooling: cosine {worst:.4f} with {reference.model}; these are its {name} vectors"
        return f"cosine {worst:.4f} with {reference.model}: another pooling method, prompt or model"
    lengths = [float(np.linalg.norm(vector)) for vector in vectors]
    if reference.is_normalized and max(abs(length - 1) for length in lengths) > 0.01:
        return f"not normalized: lengths {min(lengths):.3f} to {max(lengths):.3f}; {reference.model} has length 1"
    return None


@dataclass(frozen=True)
class ReferenceVectors:
    """Vectors of a well-known model, computed in float32, to find a server that pools or normalizes in another way."""

    model: str
    is_normalized: bool
    vectors: list[Vector]  # of REFERENCE_TEXTS
    other_pooling: dict[str, list[Vector]]  # of the first of these texts, with other pooling methods


def find_reference(model: str) -> ReferenceVectors | None:
    """Return the vectors of a model by its name, with or without an organization and a tag."""
    name = model.rstrip("/").rpartition("/")[2].partition(":")[0].lower()
    for entry in json.loads((files("cenote.doctor") / REFERENCE_FILE).read_text()):
        if name in entry["names"]:
            others = {method: decode_vectors(text, entry) for method, text in entry["other_pooling"].items()}
            return ReferenceVectors(
                entry["model"], entry["normalized"], decode_vectors(entry["vectors"], entry), others
            )
    return None


def decode_vectors(text: str, entry: dict[str, Any]) -> list[Vector]:
    rows = np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(-1, entry["dimensions"])
    return list(rows.astype(np.float64))
