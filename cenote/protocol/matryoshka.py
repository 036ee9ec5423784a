"""Matryoshka: the embedding sizes of a model, and the check of a requested one."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.errors import BadRequest, Unsupported


@dataclass(frozen=True, slots=True)
class Matryoshka:
    """The embedding sizes that a model was trained for."""

    is_supported: bool
    sizes: tuple[int, ...]  # empty: any
    full_size: int
    min_size: int = 1  # if any size is allowed
    source: str = ""

    def check_dimensions(self, dimensions: int, model: str) -> None:
        if not isinstance(dimensions, int) or isinstance(dimensions, bool):
            raise BadRequest(f"dimensions must be an integer, got {dimensions!r}", param="dimensions")
        if not self.is_supported and dimensions != self.full_size:  # the full size needs no support
            raise Unsupported(
                f'Model "{model}" does not support matryoshka representation, '
                "changing output dimensions will lead to poor results."
            )
        if self.sizes and dimensions not in self.sizes:
            raise BadRequest(
                f'Model "{model}" only supports {list(self.sizes)} matryoshka dimensions, '
                "use other output dimensions will lead to poor results."
            )
        if not self.min_size <= dimensions <= self.full_size:
            limits = f"[{self.min_size}, {self.full_size}]"
            raise BadRequest(
                f'Model "{model}" only supports dimensions in range {limits}, got {dimensions}.', param="dimensions"
            )
