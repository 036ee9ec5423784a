"""Results of the self-check in the cache folder: one safetensors file per model and kind of device."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cenote.config.device import Device
from cenote.kernels.cpu_features import cpu_features
from cenote.utils.cache_folder import find_cache_folder, remove_oldest, write_atomically
from cenote.version import __version__

FOLDER = "self-check"
FORMAT = "2"  # of the files and of the texts: results of another one are not compared
# tests and experiments make models that are never loaded again
MAX_FILES = 200


class CheckValues(NamedTuple):
    """The results of one task for all texts; `keys` are the places of the values of sparse vectors."""

    values: np.ndarray[Any, np.dtype[np.float32]]
    keys: np.ndarray[Any, np.dtype[np.int64]] | None = None


@dataclass(frozen=True, slots=True)
class CheckResults:
    """The results of all tasks of a model, and the versions that computed them."""

    by_task: Mapping[str, CheckValues]
    versions: Mapping[str, str]


def get_versions(device: Device) -> dict[str, str]:
    """Return the versions that may change results, and the processor."""
    torch = sys.modules.get("torch")  # a model that runs without it does not import it
    if torch is None:
        processor = f"{platform.machine()} {cpu_features().level}"
        return {"cenote": __version__, "tokenizers": tokenizers.__version__, "processor": processor}
    versions = {"cenote": __version__, "torch": torch.__version__, "tokenizers": tokenizers.__version__}
    if device.type != "cuda":
        return versions | {"processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"}
    with suppress(PackageNotFoundError):
        versions["triton"] = version("triton")
    versions |= {"cuda": str(torch.version.cuda), "processor": torch.cuda.get_device_name(str(device))}
    get_driver_version = getattr(torch._C, "_cuda_getDriverVersion", None)  # not in builds for other GPUs
    if get_driver_version is not None:
        number = get_driver_version()  # such as 12080
        versions["driver"] = f"{number // 1000}.{number % 1000 // 10}"
    return versions


def get_path(fingerprint: str, device: Device) -> Path:
    """Return the file of a model; its fingerprint includes dtype and quantization."""
    return find_cache_folder() / FOLDER / f"{fingerprint}-{device.type}.safetensors"


def read_results(path: Path) -> CheckResults | None:
    """Return stored results; None if there are none, or if the file cannot be used."""
    try:
        content = path.read_bytes()
        arrays = load(content)
        header_size = int.from_bytes(content[:8], "little")
        metadata = _read_metadata(content[8 : 8 + header_size])
    except (OSError, SafetensorError, ValueError):
        return None
    if metadata.pop("format", None) != FORMAT:
        return None
    names = [name.removesuffix(".values") for name in arrays if name.endswith(".values")]
    by_task = {name: CheckValues(arrays[f"{name}.values"], arrays.get(f"{name}.keys")) for name in names}
    return CheckResults(by_task, metadata)


def _read_metadata(header: bytes) -> dict[str, str]:
    metadata = json.loads(header).get("__metadata__", {})
    return {str(name): str(value) for name, value in metadata.items()}


def write_results(path: Path, results: CheckResults) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, (values, keys) in results.by_task.items():
        arrays[f"{name}.values"] = values
        if keys is not None:
            arrays[f"{name}.keys"] = keys
    write_atomically(path, save(arrays, {"format": FORMAT, **results.versions}))
    remove_oldest(path.parent, "*.safetensors", MAX_FILES)
