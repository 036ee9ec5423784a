"""Compare vectors: order, direction, length and precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cenote.doctor.answers import Vector
from cenote.doctor.client_request import ClientRequest

MIN_COSINE = 0.9995  # of the same text in two requests; half precision and other batch sizes differ by less
MIN_INT8_COSINE = 0.98
MIN_BIT_AGREEMENT = 0.96  # values near zero may have either sign
MAX_LENGTH_ERROR = 0.01


def cosine(one: Vector, other: Vector) -> float:
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms > 0 else 0.0


def find_problem(request: ClientRequest, found: Sequence[Vector], expected: Sequence[Vector]) -> str | None:
    """Return what is wrong with the vectors of a request; None if nothing is."""
    expected = expected[: request.num_inputs or len(expected)]
    if len(found) != len(expected):
        return f"{len(expected)} texts, but {len(found)} vectors"
    if (problem := find_size_problem(request, found, expected)) or (problem := find_order_problem(found, expected)):
        return problem
    if request.comparison == "equal":
        problem = find_difference(found, expected)
    elif request.comparison == "direction":
        problem = find_cosine_problem(found, expected, MIN_COSINE)
    elif request.comparison == "int8":
        problem = find_cosine_problem(found, expected, MIN_INT8_COSINE)
    elif request.comparison == "bits":
        problem = find_bit_problem(found, expected)
    if problem is None and request.is_unit:
        return find_length_problem(found, [1.0] * len(found))
    return problem


def find_size_problem(request: ClientRequest, found: Sequence[Vector], expected: Sequence[Vector]) -> str | None:
    sizes = sorted({len(vector) for vector in found})
    size = len(expected[0])
    accepted = {size, -(-size // 8) * 8} if request.comparison in ("bits", "nearest") else {size}
    if len(sizes) != 1 or sizes[0] not in accepted:
        return f"vectors have {', '.join(map(str, sizes))} dimensions, expected {size}"
    return None


def find_order_problem(found: Sequence[Vector], expected: Sequence[Vector]) -> str | None:
    """Each vector must be nearest to that of its own text."""
    size = len(expected[0])
    for i, vector in enumerate(found):
        similarities = [cosine(vector[:size], other) for other in expected]
        nearest = int(np.argmax(similarities))
        if nearest != i and similarities[nearest] > similarities[i] + 1e-3:
            return f"wrong order: text {i} has the vector of text {nearest} (cosine {similarities[nearest]:.4f})"
    return None


def find_difference(found: Sequence[Vector], expected: Sequence[Vector]) -> str | None:
    """Vectors must be equal, up to rounding, in direction and length."""
    lengths = [float(np.linalg.norm(vector)) for vector in expected]
    return find_cosine_problem(found, expected, MIN_COSINE) or find_length_problem(found, lengths)


def find_cosine_problem(found: Sequence[Vector], expected: Sequence[Vector], minimum: float) -> str | None:
    cosines = [cosine(one, other) for one, other in zip(found, expected, strict=True)]
    worst = int(np.argmin(cosines))
    if cosines[worst] >= minimum:
        return None
    return f"text {worst} has another vector than in a request of its own: cosine {cosines[worst]:.4f}"


def find_length_problem(found: Sequence[Vector], lengths: Sequence[float]) -> str | None:
    for i, (vector, length) in enumerate(zip(found, lengths, strict=True)):
        norm = float(np.linalg.norm(vector))
        if abs(norm - length) > MAX_LENGTH_ERROR * max(length, 1e-9):
            return f"vector {i} has length {norm:.4f}, expected {length:.4f}"
    return None


def find_bit_problem(found: Sequence[Vector], expected: Sequence[Vector]) -> str | None:
    for i, (bits, vector) in enumerate(zip(found, expected, strict=True)):
        signs = np.where(vector > 0, 1.0, -1.0)
        agreement = float((bits[: len(signs)] == signs).mean())
        if agreement < MIN_BIT_AGREEMENT:
            return f"bits of text {i} agree with the signs of its vector in {agreement:.0%} of the dimensions"
    return None
