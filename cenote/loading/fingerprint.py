"""What tells a loaded model apart from every other, so that nobody gets an answer of another one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from cenote.config.engine import EngineConfig
from cenote.loading.describe import ModelDescription
from cenote.version import __version__

# what answers are made of
FINGERPRINTED_FILES = ("*.json", "*.safetensors", "*.bin", "*.pt")
# larger files are read in part: so many pieces, spread evenly, and when they were written
MAX_FULL_READ_BYTES = 1024**2
SAMPLE_BYTES = 64 * 1024
NUM_SAMPLES = 16
# the hub's cache names files after what is in them
SHA256_NAME = re.compile(r"[0-9a-f]{64}")


def compute_fingerprint(description: ModelDescription, options: EngineConfig) -> bytes:
    """Of the weights, and of every decision that shapes an answer."""
    digest = blake2b(digest_size=32)
    decisions = (
        __version__,
        description.device.value.type,
        description.dtype.value,
        description.head_dtype.value,
        description.quantization.value,
        options.tokenizer,  # may name the tokens that a language model answers with
        description.kind.value,
        description.token_labels,
        description.architecture.backbone,
        replace(description.plan, model=""),
        json.dumps(description.config.values, sort_keys=True, default=repr),
    )
    for decision in decisions:
        digest.update(f"{decision}\0".encode())
    folder = description.checkpoint.folder
    for path in sorted({path for pattern in FINGERPRINTED_FILES for path in folder.rglob(pattern) if path.is_file()}):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        for part in _iter_content(path):
            digest.update(part)
    return digest.digest()


def _iter_content(path: Path) -> Iterator[bytes]:
    real = path.resolve()
    found = real.stat()
    yield f"{found.st_size}\0".encode()
    if SHA256_NAME.fullmatch(real.name):
        yield real.name.encode()
        return
    if found.st_size <= MAX_FULL_READ_BYTES:
        yield real.read_bytes()
        return
    yield f"{found.st_mtime_ns}\0".encode()
    with real.open("rb") as file:
        for piece in range(NUM_SAMPLES):
            file.seek((found.st_size - SAMPLE_BYTES) * piece // (NUM_SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)
