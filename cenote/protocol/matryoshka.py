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
    default_size: int | None = None  # requests without dimensions: embeddings are normalized, then cut to this size
    has_layer_norm: bool = False  # before embeddings are cut to the dimensions of a request

    @property
    def output_size(self) -> int:
        """The size of embeddings of requests without dimensions."""
        return self.default_size or self.full_size

    def is_layer_normed(self, dimensions: int | None) -> bool:
        return self.has_layer_norm and dimensions is not None and dimensions < self.full_size

    def check_dimensions(self, dimensions: int, model: str) -> None:
        if not isinstance(dimensions, int) or isinstance(dimensions, bool):
            raise BadRequest(f"dimensions must be an integer, got {dimensions!r}", param="dimensions")
        # sizes of the model's own files need no support
        if not self.is_supported and dimensions not in (self.full_size, self.default_size):
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
