"""Key of a model in the result cache: models with different outputs have different keys.

Stricter than the fingerprint, which identifies a model across machines and versions: the version of Cenote, the device
and the modification times of large files count too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from cenote.config.engine import EngineConfig
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.model_description import ModelDescription
from cenote.version import __version__

# files that determine the outputs
HASHED_FILES = ("*.json", "*.safetensors", "*.bin", "*.pt")
# of larger files, evenly spaced samples and the modification time are hashed
MAX_FULL_READ_BYTES = 1024**2
SAMPLE_BYTES = 64 * 1024
NUM_SAMPLES = 16
# the hub cache names large files by their SHA-256
SHA256_NAME = re.compile(r"[0-9a-f]{64}")


def compute_cache_key(description: ModelDescription, options: EngineConfig) -> bytes:
    """Return a digest of the weights and of every setting that affects outputs."""
    digest = blake2b(digest_size=32)
    decisions = (
        __version__,
        description.device.value.type,
        description.dtype.value,
        description.head_dtype.value,
        description.quantization.value,
        description.checkpoint.route,
        options.tokenizer,  # token_labels may be resolved with it
        description.kind.value,
        description.token_labels,
        description.architecture.backbone,
        replace(description.plan, model=""),
        json.dumps(description.config.values, sort_keys=True, default=repr),
        *(("deterministic",) if description.deterministic else ()),
    )
    for decision in decisions:
        digest.update(f"{decision}\0".encode())
    checkpoint: Checkpoint | None = description.checkpoint
    while checkpoint is not None:  # an adapter, then its base model
        for name, path in _list_files(checkpoint.folder):
            digest.update(f"{name}\0".encode())
            for part in _iter_content(path):
                digest.update(part)
        checkpoint = checkpoint.base
    return digest.digest()


def _list_files(folder: Path) -> list[tuple[Path, Path]]:
    paths = {path for pattern in HASHED_FILES for path in folder.rglob(pattern) if path.is_file()}
    return [(path.relative_to(folder), path) for path in sorted(paths)]


def _iter_content(path: Path) -> Iterator[bytes]:
    real = path.resolve()
    stat = real.stat()
    yield f"{stat.st_size}\0".encode()
    if SHA256_NAME.fullmatch(real.name):
        yield real.name.encode()
        return
    if stat.st_size <= MAX_FULL_READ_BYTES:
        yield real.read_bytes()
        return
    yield f"{stat.st_mtime_ns}\0".encode()
    with real.open("rb") as file:
        for sample in range(NUM_SAMPLES):
            file.seek((stat.st_size - SAMPLE_BYTES) * sample // (NUM_SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)
