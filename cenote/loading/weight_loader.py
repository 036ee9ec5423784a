"""Load checkpoint tensors into modules by weight tables, strict in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.loading.weights import CheckpointWeights
from cenote.models.weight_table import DerivedWeight, WeightTable, transpose

# tables that older versions of Transformers stored although they follow from the config
NON_WEIGHT_PATTERNS = ("*position_ids", "*rotary_emb.inv_freq")


class WeightLoader:
    """Fills modules from one checkpoint, and at the end answers for every name on either side."""

    def __init__(
        self, weights: CheckpointWeights, tables: Sequence[WeightTable], prefixes: Sequence[str] = ("",)
    ) -> None:
        self.weights = weights
        self.table, self.prefix = _select_table(weights, tables, prefixes)
        # the name that tables use -> the name in the file; a name under the prefix comes before its namesake without
        self._stored_names = {name: name for name in weights.names()}
        self._stored_names |= {
            name.removeprefix(self.prefix): name for name in weights.names() if name.startswith(self.prefix)
        }
        self._unread = set(weights.names())
        self._missing: list[str] = []
        # a stored module -> each of ours that has it, all that this one is made of, and how large it is
        self._locations: dict[str, list[tuple[str, list[str], Tensor]]] = {}
        self._shared_parameters: dict[tuple[tuple[str, ...], object, torch.dtype], nn.Parameter] = {}

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of that name, its prefix left out."""
        return name in self._stored_names

    def read(self, name: str) -> Tensor:
        """One tensor as it is stored, for those who make something else of it."""
        if name not in self._stored_names:
            raise LoadError(f"{self.weights.source}: nothing in the checkpoint for {name}")
        self._unread.discard(self._stored_names[name])
        return self.weights.get(self._stored_names[name])

    def load(
        self,
        module: nn.Module,
        table: WeightTable,
        *,
        num_layers: int,
        dtype: torch.dtype,
        device: torch.device,
        module_prefix: str = "",
    ) -> None:
        """Give every parameter of a module that was built on the meta device its tensor; `inside`: where it will be."""
        entries = dict(_expand_layers(table, num_layers))
        for path, parameter in list(module.named_parameters()):
            names, make = _find_sources(path, entries)
            missing = [name for name in names if name not in self._stored_names]
            stored = [self._stored_names[name] for name in names if name in self._stored_names]
            self._unread.difference_update(stored)
            if missing or not names:
                self._missing += missing or [f"{path} (in no table)"]
                continue
            if make in (None, transpose) and path.endswith(".weight"):
                modules = [name.removesuffix(".weight") for name in names]
                for module_name in modules:
                    place = module_prefix + path.removesuffix(".weight")
                    self._locations.setdefault(module_name, []).append((place, modules, parameter))
            owner, _, leaf = path.rpartition(".")
            holder = module.get_submodule(owner)
            wide = leaf in getattr(holder, "float32_params", ())  # what a module keeps so, whatever the model runs in
            kind = torch.float32 if wide else dtype
            # layers that share their weights in the checkpoint share them here
            key = (tuple(stored), make, kind)
            if key not in self._shared_parameters:
                tensor = self._make_tensor(stored, make, tuple(parameter.shape), kind, device)
                self._shared_parameters[key] = nn.Parameter(tensor, requires_grad=False)
            setattr(holder, leaf, self._shared_parameters[key])

    def locate(self, module: str) -> list[tuple[str, int, int, int]]:
        """Where the weight of a stored module went: our modules, its first row there, and its rows and columns."""
        found = []
        for path, modules, whole in self._locations.get(module, ()):
            at = modules.index(module)
            rows = [len(whole)]
            if len(modules) > 1:
                rows = [self.weights.get(self._stored_names[f"{name}.weight"]).shape[0] for name in modules]
            found.append((path, sum(rows[:at]), rows[at], whole.shape[1]))
        return found

    def choose_table(self, tables: Sequence[WeightTable]) -> WeightTable:
        """The first table of which the checkpoint has every name, or else the first."""
        return next((table for table in tables if all(map(self._has_module, _source_names(table)))), tables[0])

    def with_prefix(self, tables: Sequence[WeightTable], prefixes: Sequence[str]) -> WeightTable:
        """A table with the prefix that the checkpoint uses before every name of a part that has one of its own."""
        table, prefix = _select_table(self.weights, tables, prefixes)
        return {ours: _add_prefix(theirs, prefix) for ours, theirs in table.items()}

    def _has_module(self, name: str) -> bool:
        return self.has(name) or self.has(f"{name}.weight")

    def check_complete(self, unused_weights: Sequence[str] = ()) -> None:
        """Complain about parameters without a tensor, and tensors without a parameter that no pattern excuses."""
        excused = (*unused_weights, *NON_WEIGHT_PATTERNS)
        unread = [name for name in self.weights.names() if name in self._unread and not self._matches(name, excused)]
        complaints = []
        if self._missing:
            complaints.append(f"nothing in the checkpoint for {_shorten_list(self._missing)}")
        if unread:
            complaints.append(f"no place for {_shorten_list(unread)}")
        if complaints:
            raise LoadError(f"{self.weights.source}: {'; '.join(complaints)}")

    def _matches(self, name: str, patterns: Sequence[str]) -> bool:
        spellings = (name, name.removeprefix(self.prefix))
        return any(fnmatchcase(spelling, pattern) for spelling in spellings for pattern in patterns)

    def _make_tensor(
        self,
        stored: list[str],
        make: Callable[..., Tensor] | None,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        pieces = [self.weights.get(name) for name in stored]
        if make is not None:
            pieces = [make(*pieces).contiguous()]
        found = _concat_shape(pieces)
        if found != shape:
            shapes = " + ".join(str(list(piece.shape)) for piece in pieces)
            raise LoadError(
                f"{self.weights.file_of(stored[0])}: {' + '.join(stored)} has shape {shapes}, "
                f"config.json asks for {list(shape)}"
            )
        if len(pieces) == 1:
            return pieces[0].to(device, dtype)  # no copy when both already fit: the parameter is the mapped file
        joined = torch.empty(shape, dtype=dtype, device=device)
        row = 0
        for piece in pieces:
            joined[row : row + piece.shape[0]].copy_(piece)
            row += piece.shape[0]
        return joined


def _select_table(
    weights: CheckpointWeights, tables: Sequence[WeightTable], prefixes: Sequence[str]
) -> tuple[WeightTable, str]:
    """The table and the prefix under which the checkpoint has the most names."""

    def num_found(choice: tuple[WeightTable, str]) -> int:
        table, prefix = choice
        names = [prefix + name.replace("*", "0") for name in _source_names(table)]
        return sum(name in weights or f"{name}.weight" in weights for name in names)

    best = max(((table, prefix) for table in tables for prefix in prefixes), key=num_found)
    if num_found(best):
        return best
    first = next(iter(_source_names(tables[0]))).replace("*", "0")
    tried = " or ".join(f"{prefix}{first}.weight" for prefix in prefixes)
    raise LoadError(f"{weights.source}: nothing in the checkpoint for {tried}; it has {_shorten_list(weights.names())}")


def _source_names(table: WeightTable) -> Iterator[str]:
    for theirs in table.values():
        yield from _source_list(theirs)


def _add_prefix(theirs: str | list[str] | DerivedWeight, prefix: str) -> str | list[str] | DerivedWeight:
    if isinstance(theirs, str):
        return prefix + theirs
    if isinstance(theirs, DerivedWeight):
        return DerivedWeight(tuple(prefix + name for name in theirs.source_names), theirs.derive)
    return [prefix + name for name in theirs]


def _source_list(theirs: str | list[str] | DerivedWeight) -> Sequence[str]:
    if isinstance(theirs, str):
        return [theirs]
    return theirs.source_names if isinstance(theirs, DerivedWeight) else theirs


SourceEntry: TypeAlias = "tuple[list[str], Callable[..., Tensor] | None]"


def _expand_layers(table: WeightTable, num_layers: int) -> Iterator[tuple[str, SourceEntry]]:
    for ours, theirs in table.items():
        make = theirs.derive if isinstance(theirs, DerivedWeight) else None
        for layer in range(num_layers) if "*" in ours else (0,):
            names = [source.replace("*", str(layer)) for source in _source_list(theirs)]
            yield ours.replace("*", str(layer)), (names, make)


def _find_sources(path: str, entries: Mapping[str, SourceEntry]) -> SourceEntry:
    """What the checkpoint calls a parameter: the entry for it, or for the nearest module around it."""
    owner, rest = path, ""
    while owner:
        if owner in entries:
            names, make = entries[owner]
            return [name + rest for name in names], make
        owner, _, leaf = owner.rpartition(".")
        rest = f".{leaf}{rest}"
    return [], None


def _concat_shape(pieces: list[Tensor]) -> tuple[int, ...]:
    """The shape of the pieces below each other, or () when they do not fit."""
    first = pieces[0].shape
    if len(pieces) == 1:
        return tuple(first)
    if not all(piece.dim() and piece.shape[1:] == first[1:] for piece in pieces):
        return ()
    return (sum(piece.shape[0] for piece in pieces), *first[1:])


def _shorten_list(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
