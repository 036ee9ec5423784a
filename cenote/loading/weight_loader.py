"""Find the parameters of modules in a checkpoint by weight tables, strict in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from cenote.errors import LoadError
from cenote.loading.shard_reader import derive, read_shard
from cenote.loading.weights import CheckpointWeights
from cenote.models.weight_table import DerivedWeight, WeightTable, transpose
from cenote.utils.array_conversion import convert, convert_into
from cenote.utils.arrays import Array
from cenote.utils.text import list_first

if TYPE_CHECKING:
    from cenote.layers.sharding import Shard

# buffers stored by older versions of Transformers; they are computed from the config
NON_WEIGHT_PATTERNS = ("*position_ids", "*rotary_emb.inv_freq")
NO_SHARDS: Mapping[str, Shard] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StoredParameter:
    """A parameter of a module, and how its value is read from the checkpoint."""

    path: str
    shape: tuple[int, ...]
    key: tuple[object, ...]  # equal for parameters of equal values: layers that share weights in the checkpoint
    read_pieces: Callable[[], list[Array]]  # give the parameter when they are concatenated along dim 0

    def read(self, dtype: DTypeLike) -> Array:
        """Return the value in a dtype, contiguous; it is the mapped file if that is stored so."""
        pieces = self.read_pieces()
        if len(pieces) == 1:
            return np.asarray(convert(pieces[0], dtype), order="C")
        concatenated, row = np.empty(self.shape, dtype), 0
        for piece in pieces:
            convert_into(concatenated[row : row + len(piece)], piece)
            row += len(piece)
        return concatenated


class WeightLoader:
    """Read the weights of modules from one checkpoint; `check_complete` reports missing and unexpected tensors."""

    def __init__(
        self, weights: CheckpointWeights, tables: Sequence[WeightTable], prefixes: Sequence[str] = ("",)
    ) -> None:
        self.weights = weights
        if tables[0] and not any(_num_found(weights, table, prefix) for table in tables for prefix in prefixes):
            weights.strip_prefix("model.")  # saved from an attribute of a class around the model, heads included
        self.table, self.prefix = _select_table(weights, tables, prefixes)
        # name in tables -> name in the file; names with the prefix take precedence over equal names without it
        self._stored_names = {name: name for name in weights.names()}
        self._stored_names |= {
            name.removeprefix(self.prefix): name for name in weights.names() if name.startswith(self.prefix)
        }
        self._unread = set(weights.names())
        self._read_alone: set[str] = set()  # by a head that is made of them, not by a table
        self._missing: list[str] = []
        # stored module -> (module path, all stored modules concatenated there, the shape of its weight)
        self._locations: dict[str, list[tuple[str, list[str], tuple[int, ...]]]] = {}
        # what was made of the parameters, by their keys and the form that it has: modules of this model share it
        self.made: dict[tuple[object, ...], Any] = {}

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor of that name (without the prefix)."""
        return name in self._stored_names

    def read(self, name: str) -> Array:
        """Return one tensor as it is stored, and count it as used."""
        if name not in self._stored_names:
            raise LoadError(f"{self.weights.source}: the checkpoint has no {name}")
        self._unread.discard(self._stored_names[name])
        self._read_alone.add(self._stored_names[name])
        return self.weights.get(self._stored_names[name])

    def is_read_alone(self, module: str) -> bool:
        """Return whether something was made of the weight of a stored module that `locate` does not tell."""
        return self._stored_names.get(f"{module}.weight") in self._read_alone

    def find_parameters(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        table: WeightTable,
        *,
        num_layers: int,
        module_prefix: str = "",
        shards: Mapping[str, Shard] = NO_SHARDS,
    ) -> Iterator[StoredParameter]:
        """Yield the parameters of a module that the checkpoint has; nothing is read before one is asked for its value.

        `shapes`: of the parameters, by path; those that are missing are reported by `check_complete`. `module_prefix`:
        the path of the module in the backbone. `shards`: of the parameters of which this process has a part, by path.
        """
        entries = dict(_expand_layers(table, num_layers))
        for path, shape in shapes.items():
            names, make = _find_sources(path, entries)
            missing = [name for name in names if name not in self._stored_names]
            stored = [self._stored_names[name] for name in names if name in self._stored_names]
            self._unread.difference_update(stored)
            if missing or not names:
                self._missing += missing or [f"{path} (not in the weight table)"]
                continue
            if make in (None, transpose) and path.endswith(".weight"):
                modules = [name.removesuffix(".weight") for name in names]
                for module_name in modules:
                    location = module_prefix + path.removesuffix(".weight")
                    self._locations.setdefault(module_name, []).append((location, modules, shape))
            shard = shards.get(path)
            read = partial(self._read_pieces, stored, make, shape, shard)
            yield StoredParameter(path, shape, (tuple(stored), make, shard), read)

    def forget_layers(self) -> None:
        """Let go of what was made for the model: it alone decides what stays in memory."""
        self.made.clear()

    def locate(self, module: str) -> list[tuple[str, int, int, int]]:
        """Return where the weight of a stored module was loaded: (module path, first row, rows, columns)."""
        found = []
        for path, modules, shape in self._locations.get(module, ()):
            index = modules.index(module)
            rows = [shape[0]]
            if len(modules) > 1:
                rows = [self.weights.shape(self._stored_names[f"{name}.weight"])[0] for name in modules]
            found.append((path, sum(rows[:index]), rows[index], shape[-1]))
        return found

    def choose_table(self, tables: Sequence[WeightTable]) -> WeightTable:
        """Return the first table whose names are all in the checkpoint, else the first table."""
        return next((table for table in tables if all(map(self._has_module, _source_names(table)))), tables[0])

    def with_prefix(self, tables: Sequence[WeightTable], prefixes: Sequence[str]) -> WeightTable:
        """Return the table and prefix that match the checkpoint, with the prefix added to every name."""
        table, prefix = _select_table(self.weights, tables, prefixes)
        return {name: _add_prefix(entry, prefix) for name, entry in table.items()}

    def _has_module(self, name: str) -> bool:
        return self.has(name) or self.has(f"{name}.weight")

    def check_complete(self, unused_weights: Sequence[str] = ()) -> None:
        """Raise LoadError for missing tensors, and for unexpected ones that match no pattern in `unused_weights`."""
        ignored = (*unused_weights, *NON_WEIGHT_PATTERNS)
        unread = [name for name in self.weights.names() if name in self._unread and not self._matches(name, ignored)]
        problems = []
        if self._missing:
            problems.append(f"missing in the checkpoint: {list_first(self._missing, 5)}")
        if unread:
            problems.append(f"unexpected in the checkpoint: {list_first(unread, 5)}")
        if problems:
            raise LoadError(f"{self.weights.source}: {'; '.join(problems)}")

    def _matches(self, name: str, patterns: Sequence[str]) -> bool:
        names = (name, name.removeprefix(self.prefix))
        return any(fnmatchcase(candidate, pattern) for candidate in names for pattern in patterns)

    def _read_pieces(
        self, stored: list[str], make: Callable[..., Array] | None, shape: tuple[int, ...], shard: Shard | None
    ) -> list[Array]:
        """Return tensors that give a parameter of that shape when they are concatenated along dim 0."""
        if shard is not None:
            pieces = self._read_shard(stored, make, shard)
        else:
            # only a parameter that is computed from several tensors may read indices
            pieces = [self.weights.get(name, allow_indices=make is not None and len(stored) > 1) for name in stored]
            if make is not None:
                pieces = [derive(make, pieces)]
        shapes = [piece.shape for piece in pieces]
        if concat_shapes(shapes) != shape:
            raise self._wrong_shape(stored, shapes, shape)
        return pieces

    def _read_shard(self, stored: list[str], make: Callable[..., Array] | None, shard: Shard) -> list[Array]:
        if make is None:
            shapes = [self.weights.shape(name) for name in stored]
            if concat_shapes(shapes) != shard.full_shape:
                raise self._wrong_shape(stored, shapes, shard.full_shape)
        pieces = read_shard(self.weights, stored, make, shard)
        return pieces if shard.dim == 0 or len(pieces) == 1 else [np.concatenate(pieces)]

    def _wrong_shape(
        self, stored: list[str], shapes: Sequence[tuple[int, ...]], expected: tuple[int, ...]
    ) -> LoadError:
        found = " + ".join(str(list(shape)) for shape in shapes)
        return LoadError(
            f"{self.weights.file_of(stored[0])}: {' + '.join(stored)} has shape {found}, "
            f"config.json requires {list(expected)}"
        )


def _select_table(
    weights: CheckpointWeights, tables: Sequence[WeightTable], prefixes: Sequence[str]
) -> tuple[WeightTable, str]:
    """Return the table and prefix with the most names in the checkpoint."""
    choices = [(table, prefix) for table in tables for prefix in prefixes]
    best = max(choices, key=lambda choice: _num_found(weights, *choice))
    if _num_found(weights, *best) or not tables[0]:  # a model without a text encoder has no names here
        return best
    first = next(iter(_source_names(tables[0]))).replace("*", "0")
    tried = " or ".join(f"{prefix}{first}.weight" for prefix in prefixes)
    raise LoadError(f"{weights.source}: the checkpoint has no {tried}; found {list_first(weights.names(), 5)}")


def _num_found(weights: CheckpointWeights, table: WeightTable, prefix: str) -> int:
    names = [prefix + name.replace("*", "0") for name in _source_names(table)]
    return sum(name in weights or f"{name}.weight" in weights for name in names)


def _source_names(table: WeightTable) -> Iterator[str]:
    for entry in table.values():
        yield from _source_list(entry)


def _add_prefix(entry: str | list[str] | DerivedWeight, prefix: str) -> str | list[str] | DerivedWeight:
    if isinstance(entry, str):
        return prefix + entry
    if isinstance(entry, DerivedWeight):
        return DerivedWeight(tuple(prefix + name for name in entry.source_names), entry.derive)
    return [prefix + name for name in entry]


def _source_list(entry: str | list[str] | DerivedWeight) -> Sequence[str]:
    if isinstance(entry, str):
        return [entry]
    return entry.source_names if isinstance(entry, DerivedWeight) else entry


SourceEntry: TypeAlias = "tuple[list[str], Callable[..., Array] | None]"


def _expand_layers(table: WeightTable, num_layers: int) -> Iterator[tuple[str, SourceEntry]]:
    for path, entry in table.items():
        make = entry.derive if isinstance(entry, DerivedWeight) else None
        for layer in range(num_layers) if "*" in path else (0,):
            names = [source.replace("*", str(layer)) for source in _source_list(entry)]
            yield path.replace("*", str(layer)), (names, make)


def _find_sources(path: str, entries: Mapping[str, SourceEntry]) -> SourceEntry:
    """Return the stored names of a parameter, by its entry or that of the nearest enclosing module."""
    owner, rest = path, ""
    while owner:
        if owner in entries:
            names, make = entries[owner]
            return [name + rest for name in names], make
        owner, _, leaf = owner.rpartition(".")
        rest = f".{leaf}{rest}"
    return [], None


def concat_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of tensors concatenated along dim 0, or () if their other dimensions differ."""
    first = shapes[0]
    if len(shapes) == 1:
        return first
    if not all(shape and shape[1:] == first[1:] for shape in shapes):
        return ()
    return (sum(shape[0] for shape in shapes), *first[1:])
