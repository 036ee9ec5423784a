"""Find the format in which the linear layers of a model multiply: the fastest that is close to float32 on a sample."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from cenote.kernels.cpu.library import Format, unquantized_format
from cenote.utils.arrays import Array

logger = logging.getLogger("cenote")

MIN_COSINE: dict[Format, float] = {"float16": 0.9999, "int8": 0.995}
# shares of the layers that are not quantized, those with the largest errors first, until the cosine is large enough
UNQUANTIZED_SHARES = (0.1, 0.25, 0.5)
MIN_NORM = 1e-8  # of a state whose cosine is not 0

Layer = TypeVar("Layer")


@dataclass(frozen=True, slots=True)
class MatmulReport:
    """How the linear layers of a model multiply, and what was measured at load."""

    format: Format
    level: str
    cosine: float | None = None  # the smallest with the reference; None: not measured
    num_unquantized: int = 0  # layers of an int8 model
    unquantized: str = ""  # their format
    reference: str = "float32"
    is_weight_only: bool = False  # int8 weights are dequantized for each product

    def __str__(self) -> str:
        text = f"{self.format} {'weights' if self.is_weight_only else 'products'}, {self.level} kernels"
        if self.num_unquantized:
            layers = "1 layer" if self.num_unquantized == 1 else f"{self.num_unquantized} layers"
            text += f", {layers} in {self.unquantized}"
        return text if self.cosine is None else f"{text}, cosine {self.cosine:.6f} with {self.reference}"


class FormatModel(Protocol[Layer]):
    """A model whose linear layers can multiply in several formats, and a sample of its inputs."""

    def summarize(self) -> Array:
        """Run the sample and return what `summarize_states` does."""

    def rank_layers(self) -> Sequence[Layer]:
        """Return the layers by the error of their int8 products on the sample (`relative_error`), the largest first."""

    def set_format(self, format: Format, unquantized: Collection[Layer] = ()) -> None:
        """Multiply in this format from now on, except some layers of an int8 model."""


def check_format(model: FormatModel[Layer], report: MatmulReport, reference: Array) -> MatmulReport:
    """Return how a model multiplies whose format is that of the report, after changing it if its results differ.

    The worst layers of an int8 model are not quantized. If the cosine with the reference is still too small, the model
    is computed in float16, and otherwise in float32.
    """
    format, level = report.format, report.level
    cosine = find_min_cosine(model.summarize(), reference)
    if cosine >= MIN_COSINE[format]:
        return MatmulReport(format, level, cosine)
    if format == "int8":
        cosine, count = leave_out_worst(model, reference, cosine, UNQUANTIZED_SHARES)
        if cosine >= MIN_COSINE["int8"]:
            return MatmulReport("int8", level, cosine, count, unquantized_format())
    logger.info("cosine %.6f of %s with float32 is below %s", cosine, format, MIN_COSINE[format])
    other = unquantized_format() if format == "int8" else "float32"
    model.set_format(other)
    report = MatmulReport(other, level)
    return report if other == "float32" else check_format(model, report, reference)


def leave_out_worst(
    model: FormatModel[Layer], reference: Array, cosine: float, shares: Sequence[float]
) -> tuple[float, int]:
    """Leave more and more layers of an int8 model unquantized, the worst first, until its cosine is large enough.

    Return the last cosine, and the number of these layers.
    """
    count = 0
    worst = model.rank_layers() if cosine < MIN_COSINE["int8"] else ()
    for share in shares if worst else ():
        if cosine >= MIN_COSINE["int8"]:
            break
        count = max(1, round(share * len(worst)))
        logger.info("cosine %.6f of int8 is below %s: %d layers are not", cosine, MIN_COSINE["int8"], count)
        model.set_format("int8", unquantized=worst[:count])
        cosine = find_min_cosine(model.summarize(), reference)
    return cosine, count


def summarize_states(states: Array, lengths: Sequence[int]) -> Array:
    """Return the mean, the first and the last state of every sequence: what poolers read."""
    sequences = np.split(states.astype(np.float32, copy=False), np.cumsum(lengths)[:-1])
    return np.stack([row for x in sequences for row in (x.mean(axis=0), x[0], x[-1])])


def find_min_cosine(found: Array, reference: Array) -> float:
    """Return the smallest cosine of two rows; -1 if a value is NaN."""
    rows, exact = (x.astype(np.float64) for x in (found, reference))
    norms, exact_norms = (np.linalg.norm(x, axis=1).clip(min=MIN_NORM) for x in (rows, exact))
    cosines = (rows * exact).sum(axis=1) / (norms * exact_norms)
    return -1.0 if np.isnan(cosines).any() else float(cosines.min())


def relative_error(found: Array, exact: Array) -> float:
    """Return the norm of the difference, relative to the exact results."""
    return float(np.linalg.norm(found - exact) / max(float(np.linalg.norm(exact)), 1e-20))
