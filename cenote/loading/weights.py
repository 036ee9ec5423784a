"""Open the tensors of a checkpoint: safetensors or PyTorch files, single or sharded."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint, check_not_empty, first_line
from cenote.loading.safetensors_file import MappedTensor, read_mapped_tensors
from cenote.utils.arrays import Array
from cenote.utils.install_commands import torch_command

if TYPE_CHECKING:
    from torch import Tensor

FLOAT_DTYPES = tuple(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)))
INDEX_DTYPES = tuple(map(np.dtype, (np.int32, np.int64)))
# of DataParallel, torch.compile and modules of Sentence Transformers; no family has them in its own names
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "0.auto_model.", "auto_model.")
# TensorFlow names in checkpoints from before 2021
RENAMED_SUFFIXES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class CheckpointWeights:
    """Tensors by name, memory-mapped and read on first use."""

    def __init__(self, source: Path) -> None:
        self.source = source  # named in errors about the whole checkpoint
        self._readers: dict[str, tuple[Path, Callable[[], Array]]] = {}
        self.num_read_bytes = 0  # of the tensors and ranges of tensors that were read so far

    def add(self, name: str, file: Path, read: Callable[[], Array]) -> None:
        for old, new in RENAMED_SUFFIXES.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        self._readers[name] = (file, read)

    def remove(self, name: str) -> Callable[[], Array]:
        """Remove a tensor and return its reader."""
        return self._readers.pop(name)[1]

    def names(self) -> list[str]:
        return list(self._readers)

    def strip_prefix(self, *prefixes: str) -> bool:
        """Remove the first of the prefixes that all names have; return whether there is one."""
        found = next((prefix for prefix in prefixes if all(name.startswith(prefix) for name in self._readers)), None)
        if found is None or not self._readers:
            return False
        self._readers = {name.removeprefix(found): reader for name, reader in self._readers.items()}
        return True

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def file_of(self, name: str) -> Path:
        return self._readers[name][0]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; that of safetensors is in the header, so that no data is read."""
        read = self._readers[name][1]
        return read.shape if isinstance(read, MappedTensor) else self.get_stored(name).shape

    def get(self, name: str, *, allow_indices: bool = False) -> Array:
        """Return a tensor of floats; `allow_indices`: or of 32- or 64-bit integers."""
        tensor = self._get_checked(name, allow_indices)
        self.num_read_bytes += tensor.nbytes
        return tensor

    def get_range(self, name: str, dim: int, start: int, end: int) -> Array:
        """Return a range of one dimension of a tensor of floats; of safetensors, nothing else is read."""
        tensor = self._get_checked(name)
        part = select_range(tensor, dim, start, end)
        is_mapped = isinstance(self._readers[name][1], MappedTensor)
        self.num_read_bytes += part.nbytes if is_mapped else tensor.nbytes
        return part

    def _get_checked(self, name: str, allow_indices: bool = False) -> Array:
        tensor = self.get_stored(name)
        if allow_indices and tensor.dtype in INDEX_DTYPES:
            return tensor
        if tensor.dtype not in FLOAT_DTYPES:
            raise LoadError(
                f"{self.file_of(name)}: {name} is stored as {tensor.dtype}, and config.json has no "
                "quantization_config that says how to read it; use the original checkpoint"
            )
        return tensor

    def get_stored(self, name: str) -> Array:
        """Return a tensor of any dtype, mapped from its file where possible; its memory is freed with it."""
        file, read = self._readers[name]
        try:
            return read()
        except (SafetensorError, OSError, RuntimeError, ValueError, LookupError, TypeError) as error:
            raise LoadError(f"{file}: {name} cannot be read ({first_line(error)}); download it again") from error


def select_range(array: Array, dim: int, start: int, end: int) -> Array:
    """Return a view of a range of one dimension."""
    view: Array = array[(slice(None),) * dim + (slice(start, end),)]
    return view


def open_weights(checkpoint: Checkpoint, folder: str = "") -> CheckpointWeights:
    """Open the weights of a folder, by their names without prefixes of wrappers."""
    weights = _open_files(checkpoint, folder)
    while weights.strip_prefix(*WRAPPER_PREFIXES):
        pass
    return weights


def _open_files(checkpoint: Checkpoint, folder: str) -> CheckpointWeights:
    """Open safetensors files if present, else PyTorch files (weights only, no pickled code); single or sharded."""
    for file, read in WEIGHT_FILES.items():
        name = f"{folder}/{file}" if folder else file
        if (path := checkpoint.find_file(name)) is not None:
            return open_weights_file(path)
        if checkpoint.find_file(f"{name}.index.json") is not None:
            return _open_shards(checkpoint, f"{name}.index.json", read)
    location = checkpoint.folder / folder
    raise LoadError(
        f"{location} has no weights: expected model.safetensors, model.safetensors.index.json, pytorch_model.bin "
        "or pytorch_model.bin.index.json; download the model again"
    )


def has_weights(checkpoint: Checkpoint) -> bool:
    names = (*WEIGHT_FILES, *(f"{file}.index.json" for file in WEIGHT_FILES))
    return any(checkpoint.find_file(name) is not None for name in names)


def open_weights_file(path: Path) -> CheckpointWeights:
    """Open one file; the suffix determines the format."""
    weights = CheckpointWeights(path)
    for key, tensor in (_open_safetensors if path.suffix == ".safetensors" else _open_pickle)(path).items():
        weights.add(key, path, tensor)
    return weights


def _open_safetensors(path: Path) -> Mapping[str, Callable[[], Array]]:
    check_not_empty(path)
    try:
        return read_mapped_tensors(path)
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        size = path.stat().st_size
        raise LoadError(f"{path} is damaged ({first_line(error)}; {size} bytes); download it again") from error


def _open_pickle(path: Path) -> Mapping[str, Callable[[], Array]]:
    """Open a file of PyTorch, which only torch can read."""
    check_not_empty(path)
    try:
        from torch import Tensor

        from cenote.layers.torch_dtypes import to_array
    except ImportError as error:
        raise LoadError(
            f"{path} is in the format of PyTorch, which cannot be read without torch; "
            f"convert it to safetensors or install torch: {torch_command()}"
        ) from error
    values = _load_pickle(path)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise LoadError(
            f"{path} contains a {type(values).__name__}; expected tensors by name; convert it to safetensors"
        )

    def make_reader(tensor: Tensor) -> Callable[[], Array]:
        return lambda: to_array(tensor)

    return {name: make_reader(tensor) for name, tensor in values.items() if isinstance(tensor, Tensor)}


def _load_pickle(path: Path) -> Any:
    import torch

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
            f"{path} is damaged or contains objects other than tensors, which could run code; use model.safetensors"
        ) from error
    # a damaged file can raise any error
    except Exception as error:
        size = path.stat().st_size
        raise LoadError(f"{path} is damaged ({first_line(error)}; {size} bytes); download it again") from error


def _open_shards(
    checkpoint: Checkpoint, index: str, read: Callable[[Path], Mapping[str, Callable[[], Array]]]
) -> CheckpointWeights:
    source = checkpoint.folder / index
    files = checkpoint.read_json_object(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise LoadError(f"{source} has no weight_map of tensor names to files; download it again")
    weights = CheckpointWeights(source)
    for file in sorted(set(files.values())):
        path = checkpoint.find_file(str(Path(index).parent / file))
        if path is None:
            raise LoadError(f"{source.parent / file} is missing, but listed in {index}; download the model again")
        tensors = read(path)
        for name in (name for name, stored_in in files.items() if stored_in == file):
            if name not in tensors:
                raise LoadError(f"{path} has no {name}, which {index} lists; download the model again")
            weights.add(name, path, tensors[name])
    return weights


WEIGHT_FILES = {"model.safetensors": _open_safetensors, "pytorch_model.bin": _open_pickle}
