"""The tensors of a checkpoint, and the strict way in which they get into a module."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint, first_line, refuse_empty
from cenote.models.weight_table import Made, WeightTable, turned_over

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# checkpoints from before 2021 call these gamma and beta
OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# tables that older versions of Transformers stored although they follow from the config
NOT_WEIGHTS = ("*position_ids", "*rotary_emb.inv_freq")


class Weights:
    """Tensors by name. They stay in their files, mapped into memory, until somebody computes with them."""

    def __init__(self, source: Path) -> None:
        self.source = source  # the file that a message about all of them names
        self._readers: dict[str, tuple[Path, Callable[[], Tensor]]] = {}

    def add(self, name: str, file: Path, read: Callable[[], Tensor]) -> None:
        for old, new in OLD_ENDINGS.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        self._readers[name] = (file, read)

    def names(self) -> list[str]:
        return list(self._readers)

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def file(self, name: str) -> Path:
        return self._readers[name][0]

    def get(self, name: str) -> Tensor:
        file, read = self._readers[name]
        try:
            tensor = read()
        except (SafetensorError, OSError, RuntimeError) as error:
            raise LoadError(f"{file}: {name} cannot be read ({first_line(error)}); download it again") from error
        if tensor.dtype not in FLOATS or tensor.layout is not torch.strided:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise LoadError(f"{file}: {name} is stored as {kind}; quantised weights cannot be read, take the originals")
        return tensor


def open_weights(checkpoint: Checkpoint, folder: str = "") -> Weights:
    """Safetensors where there are any, one file or many; else PyTorch's own format, read without running its code."""
    for file, read in (("model.safetensors", _open_safetensors), ("pytorch_model.bin", _open_pickled)):
        name = f"{folder}/{file}" if folder else file
        if (path := checkpoint.path(name)) is not None:
            return open_file(path)
        if checkpoint.path(f"{name}.index.json") is not None:
            return _open_shards(checkpoint, f"{name}.index.json", read)
    place = checkpoint.folder / folder
    raise LoadError(
        f"{place} has no weights: looked for model.safetensors, model.safetensors.index.json, pytorch_model.bin "
        "and pytorch_model.bin.index.json; download the model again"
    )


def open_file(path: Path) -> Weights:
    """One file, by its ending."""
    weights = Weights(path)
    for key, tensor in (_open_safetensors if path.suffix == ".safetensors" else _open_pickled)(path).items():
        weights.add(key, path, tensor)
    return weights


class Filler:
    """Fills modules from one checkpoint, and at the end answers for every name on either side."""

    def __init__(self, weights: Weights, tables: Sequence[WeightTable], prefixes: Sequence[str] = ("",)) -> None:
        self.weights = weights
        self.table, self.prefix = _names_in_use(weights, tables, prefixes)
        # the name that tables use -> the name in the file; a name under the prefix comes before its namesake without
        self._stored = {name: name for name in weights.names()}
        self._stored |= {
            name.removeprefix(self.prefix): name for name in weights.names() if name.startswith(self.prefix)
        }
        self._unread = set(weights.names())
        self._unfilled: list[str] = []
        # a stored module -> each of ours that has it, all that this one is made of, and how large it is
        self._places: dict[str, list[tuple[str, list[str], Tensor]]] = {}
        self._shared: dict[tuple[tuple[str, ...], object, torch.dtype], nn.Parameter] = {}

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of that name, its prefix left out."""
        return name in self._stored

    def read(self, name: str) -> Tensor:
        """One tensor as it is stored, for those who make something else of it."""
        if name not in self._stored:
            raise LoadError(f"{self.weights.source}: nothing in the checkpoint for {name}")
        self._unread.discard(self._stored[name])
        return self.weights.get(self._stored[name])

    def fill(
        self,
        module: nn.Module,
        table: WeightTable,
        *,
        num_layers: int,
        dtype: torch.dtype,
        device: torch.device,
        inside: str = "",
    ) -> None:
        """Give every parameter of a module that was built on the meta device its tensor; `inside`: where it will be."""
        entries = dict(_by_layer(table, num_layers))
        for path, parameter in list(module.named_parameters()):
            names, make = _names_for(path, entries)
            missing = [name for name in names if name not in self._stored]
            stored = [self._stored[name] for name in names if name in self._stored]
            self._unread.difference_update(stored)
            if missing or not names:
                self._unfilled += missing or [f"{path} (in no table)"]
                continue
            if make in (None, turned_over) and path.endswith(".weight"):
                modules = [name.removesuffix(".weight") for name in names]
                for module_name in modules:
                    place = inside + path.removesuffix(".weight")
                    self._places.setdefault(module_name, []).append((place, modules, parameter))
            owner, _, leaf = path.rpartition(".")
            holder = module.get_submodule(owner)
            wide = leaf in getattr(holder, "float32", ())  # what a module keeps so, whatever the model runs in
            kind = torch.float32 if wide else dtype
            # layers that share their weights in the checkpoint share them here
            key = (tuple(stored), make, kind)
            if key not in self._shared:
                tensor = self._made(stored, make, tuple(parameter.shape), kind, device)
                self._shared[key] = nn.Parameter(tensor, requires_grad=False)
            setattr(holder, leaf, self._shared[key])

    def places(self, module: str) -> list[tuple[str, int, int, int]]:
        """Where the weight of a stored module went: our modules, its first row there, and its rows and columns."""
        found = []
        for path, modules, whole in self._places.get(module, ()):
            at = modules.index(module)
            rows = [len(whole)]
            if len(modules) > 1:
                rows = [self.weights.get(self._stored[f"{name}.weight"]).shape[0] for name in modules]
            found.append((path, sum(rows[:at]), rows[at], whole.shape[1]))
        return found

    def choose(self, tables: Sequence[WeightTable]) -> WeightTable:
        """The first table of which the checkpoint has every name, or else the first."""
        return next((table for table in tables if all(map(self._has_module, _sources(table)))), tables[0])

    def spelled(self, tables: Sequence[WeightTable], prefixes: Sequence[str]) -> WeightTable:
        """A table with the prefix that the checkpoint uses before every name of a part that has one of its own."""
        table, prefix = _names_in_use(self.weights, tables, prefixes)
        return {ours: _prefixed(theirs, prefix) for ours, theirs in table.items()}

    def _has_module(self, name: str) -> bool:
        return self.has(name) or self.has(f"{name}.weight")

    def finish(self, unused: Sequence[str] = ()) -> None:
        """Complain about parameters without a tensor, and tensors without a parameter that no pattern excuses."""
        excused = (*unused, *NOT_WEIGHTS)
        unread = [name for name in self.weights.names() if name in self._unread and not self._matches(name, excused)]
        complaints = []
        if self._unfilled:
            complaints.append(f"nothing in the checkpoint for {_listed(self._unfilled)}")
        if unread:
            complaints.append(f"no place for {_listed(unread)}")
        if complaints:
            raise LoadError(f"{self.weights.source}: {'; '.join(complaints)}")

    def _matches(self, name: str, patterns: Sequence[str]) -> bool:
        spellings = (name, name.removeprefix(self.prefix))
        return any(fnmatchcase(spelling, pattern) for spelling in spellings for pattern in patterns)

    def _made(
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
        found = _stacked_shape(pieces)
        if found != shape:
            shapes = " + ".join(str(list(piece.shape)) for piece in pieces)
            raise LoadError(
                f"{self.weights.file(stored[0])}: {' + '.join(stored)} has shape {shapes}, "
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


def _open_safetensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    refuse_empty(path)
    try:
        file: Any = safe_open(path, framework="pt", device="cpu")
        names = list(file.keys())
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        size = path.stat().st_size
        raise LoadError(f"{path} is damaged ({first_line(error)}; {size} bytes); download it again") from error

    def reader(name: str) -> Callable[[], Tensor]:
        return lambda: file.get_tensor(name)

    return {name: reader(name) for name in names}


def _open_pickled(path: Path) -> dict[str, Callable[[], Tensor]]:
    refuse_empty(path)
    values = _unpickled(path)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise LoadError(f"{path} holds a {type(values).__name__}, not tensors by name; convert it to model.safetensors")

    def reader(tensor: Tensor) -> Callable[[], Tensor]:
        return lambda: tensor

    return {name: reader(tensor) for name, tensor in values.items() if isinstance(tensor, Tensor)}


def _unpickled(path: Path) -> Any:
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            # files from before PyTorch 1.6 cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise LoadError(
            f"{path} is damaged or holds more than tensors, which could run code; take model.safetensors instead"
        ) from error
    # whatever else a damaged file makes the reader stumble over
    except Exception as error:
        size = path.stat().st_size
        raise LoadError(f"{path} is damaged ({first_line(error)}; {size} bytes); download it again") from error


def _open_shards(
    checkpoint: Checkpoint, index: str, read: Callable[[Path], dict[str, Callable[[], Tensor]]]
) -> Weights:
    source = checkpoint.folder / index
    places = checkpoint.json_object(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise LoadError(f"{source} has no weight_map of tensor names to files; download it again")
    weights = Weights(source)
    for file in sorted(set(places.values())):
        path = checkpoint.path(str(Path(index).parent / file))
        if path is None:
            raise LoadError(f"{source.parent / file} is missing, {index} names it; download the model again")
        tensors = read(path)
        for name in (name for name, place in places.items() if place == file):
            if name not in tensors:
                raise LoadError(f"{path} has no {name}, {index} says it does; download the model again")
            weights.add(name, path, tensors[name])
    return weights


def _names_in_use(weights: Weights, tables: Sequence[WeightTable], prefixes: Sequence[str]) -> tuple[WeightTable, str]:
    """The table and the prefix under which the checkpoint has the most names."""

    def num_found(choice: tuple[WeightTable, str]) -> int:
        table, prefix = choice
        names = [prefix + name.replace("*", "0") for name in _sources(table)]
        return sum(name in weights or f"{name}.weight" in weights for name in names)

    best = max(((table, prefix) for table in tables for prefix in prefixes), key=num_found)
    if num_found(best):
        return best
    first = next(iter(_sources(tables[0]))).replace("*", "0")
    tried = " or ".join(f"{prefix}{first}.weight" for prefix in prefixes)
    raise LoadError(f"{weights.source}: nothing in the checkpoint for {tried}; it has {_listed(weights.names())}")


def _sources(table: WeightTable) -> Iterator[str]:
    for theirs in table.values():
        yield from _listing(theirs)


def _prefixed(theirs: str | list[str] | Made, prefix: str) -> str | list[str] | Made:
    if isinstance(theirs, str):
        return prefix + theirs
    if isinstance(theirs, Made):
        return Made(tuple(prefix + name for name in theirs.names), theirs.make)
    return [prefix + name for name in theirs]


def _listing(theirs: str | list[str] | Made) -> Sequence[str]:
    if isinstance(theirs, str):
        return [theirs]
    return theirs.names if isinstance(theirs, Made) else theirs


Entry: TypeAlias = "tuple[list[str], Callable[..., Tensor] | None]"


def _by_layer(table: WeightTable, num_layers: int) -> Iterator[tuple[str, Entry]]:
    for ours, theirs in table.items():
        make = theirs.make if isinstance(theirs, Made) else None
        for layer in range(num_layers) if "*" in ours else (0,):
            names = [source.replace("*", str(layer)) for source in _listing(theirs)]
            yield ours.replace("*", str(layer)), (names, make)


def _names_for(path: str, entries: Mapping[str, Entry]) -> Entry:
    """What the checkpoint calls a parameter: the entry for it, or for the nearest module around it."""
    owner, rest = path, ""
    while owner:
        if owner in entries:
            names, make = entries[owner]
            return [name + rest for name in names], make
        owner, _, leaf = owner.rpartition(".")
        rest = f".{leaf}{rest}"
    return [], None


def _stacked_shape(pieces: list[Tensor]) -> tuple[int, ...]:
    """The shape of the pieces below each other, or () when they do not fit."""
    first = pieces[0].shape
    if len(pieces) == 1:
        return tuple(first)
    if not all(piece.dim() and piece.shape[1:] == first[1:] for piece in pieces):
        return ()
    return (sum(piece.shape[0] for piece in pieces), *first[1:])


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
