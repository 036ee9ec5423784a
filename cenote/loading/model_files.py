"""The files of a checkpoint that determine results, and their digests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

from cenote.errors import LoadError
from cenote.loading.checkpoint import (
    ADAPTER_WEIGHTS,
    HEAD_FILES,
    IGNORE_PATTERNS,
    PICKLE_PATTERN,
    WEIGHT_PATTERN,
    Checkpoint,
    first_line,
)
from cenote.loading.file_digest import compute_sha256

INDEX_SUFFIX = ".index.json"
INDEX_NAMES = ("model*.safetensors.index.json", "pytorch_model*.bin.index.json")
# read instead of safetensors files, in folders without them
PICKLE_NAMES = (PICKLE_PATTERN, ADAPTER_WEIGHTS[1])
# vocabularies, of which only tokenizer.json is read if it exists
TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILES = ("vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "*.model")
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.*")
# larger files are hashed in part: NUM_SAMPLES blocks, and the header of safetensors files
MAX_FULL_BYTES = 128 * 1024**2
NUM_SAMPLES, SAMPLE_BYTES = 256, 64 * 1024
MAX_HEADER_BYTES = 100 * 1024**2  # the limit of the safetensors library
# the hub cache names large files by their SHA-256
SHA256_NAME = re.compile(r"[0-9a-f]{64}")


def list_weight_files(checkpoint: Checkpoint) -> list[Path]:
    """Return the weights that loading reads: empty if they, or some of the shards, are missing.

    Copies in other formats and training checkpoints are left out, so that a download and a copy of the whole
    repository have the same files.
    """
    found = _list_files(checkpoint.folder)
    weights = _select_weights(found)
    heads = [path for path in found if path.name in HEAD_FILES]
    return sorted({*weights, *heads}) if weights and not _list_missing_shards(found) else []


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not _is_ignored(path.relative_to(folder))]


def _select_weights(found: list[Path]) -> list[Path]:
    tensors = [path for path in found if path.match(WEIGHT_PATTERN)]
    with_tensors = {path.parent for path in tensors}
    return tensors + [path for path in found if _matches(path, PICKLE_NAMES) and path.parent not in with_tensors]


def _list_missing_shards(found: list[Path]) -> list[Path]:
    """Return the shards that an index lists and that are missing; an index beside the unsharded file is not read."""
    indices = [path for path in found if _matches(path, INDEX_NAMES)]
    if any(path.match("*.safetensors.index.json") for path in indices):
        indices = [path for path in indices if path.match("*.safetensors.index.json")]
    indices = [path for path in indices if path.with_name(path.name.removesuffix(INDEX_SUFFIX)) not in found]
    shards = {index.parent / name for index in indices for name in _read_shard_names(index)}
    return sorted(shards - set(found))


def _read_shard_names(index: Path) -> set[str]:
    try:
        return set(map(str, json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()  # loading reports it


def list_missing_files(checkpoint: Checkpoint, tokenizer: Checkpoint | None) -> list[str]:
    """Return the files, by their path in the folder, that loading would miss; of several that would do, the usual."""
    missing: list[str] = []
    model: Checkpoint | None = checkpoint
    while model is not None:  # an adapter, then its base model
        found = _list_files(model.folder)
        missing += [path.relative_to(model.folder).as_posix() for path in _list_missing_shards(found)]
        if not missing and not _select_weights(found):
            missing.append("model.safetensors")
        model = model.base
    if tokenizer is not None:
        vocabularies = (TOKENIZER_FILE, *VOCABULARY_FILES)
        if not any(_matches(path, vocabularies) for path in list_tokenizer_files(tokenizer)):
            missing.append(TOKENIZER_FILE)
    return missing


def list_tokenizer_files(checkpoint: Checkpoint) -> list[Path]:
    """Return the files of a tokenizer: its vocabulary and its settings."""
    folders = dict.fromkeys((checkpoint.encoder_path, checkpoint.folder))
    own = {path.name: path for folder in reversed(folders) if folder.is_dir() for path in sorted(folder.iterdir())}
    base = [] if checkpoint.base is None else list_tokenizer_files(checkpoint.base)
    files = {path.name: path for path in base} | {name: path for name, path in own.items() if path.is_file()}
    vocabulary = (TOKENIZER_FILE,) if TOKENIZER_FILE in files else VOCABULARY_FILES
    return [files[name] for name in sorted(files) if _matches(files[name], (*vocabulary, *TOKENIZER_SETTINGS))]


def digest_file(path: Path, *, is_full: bool = False) -> str:
    """Return the SHA-256 of a file; of one above 128 MiB, unless `is_full`, that of its size, header and samples.

    The samples are 256 blocks of 64 KiB at equal distances: training changes all weights, so any of them shows it, but
    a change of single numbers between them does not show.
    """
    real = path.resolve()
    try:
        size = real.stat().st_size
        if size > MAX_FULL_BYTES and not is_full:
            return _digest_samples(real, size, has_header=path.suffix == ".safetensors")
        if SHA256_NAME.fullmatch(real.name):
            return real.name
        return compute_sha256(real)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {first_line(error)}") from error


def _digest_samples(path: Path, size: int, *, has_header: bool) -> str:
    digest = hashlib.sha256(f"{size}\0".encode())
    with path.open("rb") as file:
        if has_header:
            header_bytes = min(int.from_bytes(file.read(8), "little"), MAX_HEADER_BYTES)
            digest.update(file.read(header_bytes))
        for sample in range(NUM_SAMPLES):
            file.seek((size - SAMPLE_BYTES) * sample // (NUM_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def iter_digests(checkpoint: Checkpoint, files: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield name and digest of each file, by its path in the model folder."""
    for path in files:
        folders = chain([checkpoint.folder], [] if checkpoint.base is None else [checkpoint.base.folder])
        folder = next((folder for folder in folders if path.is_relative_to(folder)), path.parent)
        yield path.relative_to(folder).as_posix(), digest_file(path)


def _is_ignored(path: Path) -> bool:
    name = path.as_posix()
    return name.startswith(".") or any(fnmatch(name, pattern) for pattern in IGNORE_PATTERNS)


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)
