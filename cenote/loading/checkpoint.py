"""Find or download the folder of a checkpoint and read its files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from cenote.config.engine import DEFAULT_MODEL, HUB_SCHEME, HubAccess
from cenote.errors import LoadError
from cenote.loading.default_model import SHORT_NAME, find_packaged
from cenote.loading.object_store import S3_SCHEME, download_from_s3
from cenote.loading.other_formats import check_file, check_folder
from cenote.utils.progress import get_line_class, shows_bars
from cenote.utils.text import list_first

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# `*` also matches `/`, so files of Sentence Transformers modules are included
DOWNLOAD_PATTERNS = ["*.json", "*.txt", "*.model", "*.jinja", "README.md", "artifact.metadata"]
WEIGHT_PATTERN = "*.safetensors"
HEAD_FILES = ["sparse_linear.pt", "colbert_linear.pt"]  # of bge-m3
# other weight formats and training artefacts
IGNORE_PATTERNS = [
    "onnx/*",
    "openvino/*",
    "coreml/*",
    "original/*",
    "consolidated*",
    "checkpoint-*",
    "runs/*",
    "eval/*",
]
PICKLE_PATTERN = "pytorch_model*.bin"
ADAPTER_CONFIG = "adapter_config.json"  # of PEFT
GLINER_CONFIG = "gliner_config.json"  # instead of config.json
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# folders of Sentence Transformers modules with weights of their own
WEIGHTED_MODULES = ("*_Dense", "*_LayerNorm", "*_Transformer", "*_CLIPModel", "*_*StaticEmbedding")
LFS_POINTER = b"version https://git-lfs"
DEFAULT_HUB = HubAccess()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder and the name it was requested by."""

    name: str
    folder: Path
    base: Checkpoint | None = None  # of an adapter: the model that it changes, which has the files it lacks
    encoder_folder: str = ""  # with config.json, tokenizer and weights; its files take precedence over the root's
    route: str | None = None  # of a Router (Sentence Transformers); None: its default

    @property
    def encoder_path(self) -> Path:
        return self.folder / self.encoder_folder

    @property
    def candidate_names(self) -> tuple[str, ...]:
        """Names of the model without its owner: as requested, its folder, and its repository in the hub cache."""
        folder = self.folder.resolve()
        names = (self.name.rstrip("/").rpartition("/")[2], folder.name)
        return (*names, folder.parent.parent.name.rpartition("--")[2]) if folder.parent.name == "snapshots" else names

    def find_file(self, file: str) -> Path | None:
        """Return the path of a file, or None; raise for broken links and paths outside the folder."""
        path = self.find_own_file(file)
        return self.base.find_file(file) if path is None and self.base is not None else path

    def find_own_file(self, file: str) -> Path | None:
        """Return the path of a file in the folder itself, not in that of the base model."""
        if self.encoder_folder and (path := self._find_in_folder(f"{self.encoder_folder}/{file}")) is not None:
            return path
        return self._find_in_folder(file)

    def _find_in_folder(self, file: str) -> Path | None:
        parts = PurePosixPath(file)
        if parts.is_absolute() or ".." in parts.parts:
            raise LoadError(f"{self.folder}: {file!r} is outside the model folder; expected a relative path inside it")
        path = self.folder / parts
        try:
            if path.is_symlink() and not path.exists():
                raise LoadError(f"{path} links to {os.readlink(path)}, which is missing; download the model again")
            return path if path.is_file() else None
        except OSError as error:
            raise LoadError(f"{path} cannot be read: {first_line(error)}") from error

    def read_json(self, file: str) -> Any | None:
        """Return the parsed JSON file, or None if it does not exist."""
        path = self.find_file(file)
        return None if path is None else _parse_json_file(path)

    def read_json_object(self, file: str) -> dict[str, Any]:
        """Return a JSON file that must hold an object; {} if it does not exist."""
        values = self.read_json(file)
        if values is not None and not isinstance(values, dict):
            raise LoadError(f"{self.folder / file} contains a {type(values).__name__}; expected a JSON object")
        return values or {}

    def require_json(self, file: str) -> Any:
        return _parse_json_file(self.require_file(file))

    def require_file(self, file: str) -> Path:
        path = self.find_file(file)
        if path is None:
            raise LoadError(f"{self.folder / file} is missing; download the model again")
        return path


def find_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    hub: HubAccess = DEFAULT_HUB,
    needs_config: bool = True,
    needs_weights: bool = True,
) -> Checkpoint:
    """Return a local folder, or download from the hub or S3; `needs_config=False` is for tokenizers: no weights."""
    if not model:
        raise LoadError("the model name is empty; expected a folder with config.json or a hub name like owner/name")
    if model.startswith(S3_SCHEME):
        stored = Checkpoint(model, _download_from_s3(model, needs_weights=needs_config and needs_weights))
        return _require_config(stored) if needs_config else stored
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _require_config(Checkpoint(model, folder)) if needs_config else Checkpoint(model, folder)
    check_file(model)
    if not HUB_NAME.fullmatch(model):
        raise LoadError(
            f"folder {model!r} does not exist; expected a folder with config.json or a hub name like owner/name"
        )
    if revision is None and (packaged_folder := find_packaged(model)) is not None:
        return Checkpoint(model, packaged_folder)
    if model == SHORT_NAME:  # not a hub name
        model = DEFAULT_MODEL
    if not needs_config:
        return Checkpoint(model, download_snapshot(model, revision, hub, DOWNLOAD_PATTERNS))
    if not needs_weights:
        # the files of the heads of bge-m3 tell what it is
        patterns = [*DOWNLOAD_PATTERNS, *HEAD_FILES]
        return _require_config(Checkpoint(model, download_snapshot(model, revision, hub, patterns)))
    return _require_config(Checkpoint(model, _download_model(model, revision, hub)))


def find_adapter(name: str, *, hub: HubAccess = DEFAULT_HUB) -> Checkpoint:
    """Return a local folder, or download an adapter from the hub or S3."""
    if name.startswith(S3_SCHEME):
        return Checkpoint(name, _download_from_s3(name, needs_weights=True))
    name = name.removeprefix(HUB_SCHEME)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Checkpoint(name, folder)
    if not HUB_NAME.fullmatch(name):
        raise LoadError(f"folder {name!r} does not exist; expected a folder with adapter_config.json or a hub name")
    return Checkpoint(
        name, download_snapshot(name, None, hub, [*DOWNLOAD_PATTERNS, WEIGHT_PATTERN, ADAPTER_WEIGHTS[1]])
    )


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set now; huggingface_hub reads them only at import."""
    switches = (os.environ.get("HF_HUB_OFFLINE"), os.environ.get("TRANSFORMERS_OFFLINE"))
    return any(value is not None and value.upper() in ("1", "ON", "YES", "TRUE") for value in switches)


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, or the error type if it is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def check_not_empty(path: Path) -> None:
    """Raise LoadError for an empty file and for a Git LFS pointer."""
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {first_line(error)}") from error
    if not start:
        raise LoadError(f"{path} is empty (0 bytes); download it again")
    if start == LFS_POINTER:
        raise LoadError(f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder")


def _require_config(checkpoint: Checkpoint) -> Checkpoint:
    # Sentence Transformers: config.json may be in the folder of a module, and static embeddings have none
    check_folder(checkpoint.folder)
    names = ("config.json", "modules.json", ADAPTER_CONFIG, GLINER_CONFIG)
    if all(checkpoint.find_file(file) is None for file in names):
        found = sorted(entry.name for entry in checkpoint.folder.iterdir())
        raise LoadError(
            f"{checkpoint.folder} is not a model folder: no config.json, found {list_first(found, 5) or 'nothing'}; "
            "expected config.json, tokenizer.json and model.safetensors"
        )
    return checkpoint


def _parse_json_file(path: Path) -> Any:
    check_not_empty(path)
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:  # invalid JSON or invalid UTF-8
        size = path.stat().st_size
        raise LoadError(f"{path} is not valid JSON ({first_line(error)}; {size} bytes); download it again") from error
    except RecursionError:
        raise LoadError(f"{path} is nested too deep ({path.stat().st_size} bytes); download it again") from None


def _download_model(name: str, revision: str | None, hub: HubAccess) -> Path:
    patterns = [*DOWNLOAD_PATTERNS, WEIGHT_PATTERN, *HEAD_FILES]
    folder = download_snapshot(name, revision, hub, patterns)
    missing = [PICKLE_PATTERN] if not any(folder.glob("model*.safetensors")) else []
    missing += [
        f"{module.name}/{PICKLE_PATTERN}"
        for kind in WEIGHTED_MODULES
        for module in folder.glob(kind)
        if not (module / "model.safetensors").exists()
    ]
    if (folder / ADAPTER_CONFIG).exists() and not (folder / ADAPTER_WEIGHTS[0]).exists():
        missing.append(ADAPTER_WEIGHTS[1])
    return download_snapshot(name, revision, hub, [*patterns, *missing]) if missing else folder


def _download_from_s3(uri: str, *, needs_weights: bool) -> Path:
    patterns = [*DOWNLOAD_PATTERNS, *HEAD_FILES]
    if not needs_weights:
        return download_from_s3(uri, patterns, IGNORE_PATTERNS, ())
    return download_from_s3(
        uri, [*patterns, WEIGHT_PATTERN], IGNORE_PATTERNS, (f"*{PICKLE_PATTERN}", "*adapter_model.bin")
    )


def download_snapshot(name: str, revision: str | None, hub: HubAccess, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download, try_to_load_from_cache
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not shows_bars():
        disable_progress_bars()  # of single files
    cache, offline = hub.cache_dir, is_offline()
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                token=hub.token,
                cache_dir=cache,
                allow_patterns=patterns,
                ignore_patterns=IGNORE_PATTERNS,
                local_files_only=offline,
                tqdm_class=None if shows_bars() else get_line_class(),
            )
        )
    # HTTP libraries differ between huggingface_hub versions, so their errors have no common base class
    except Exception as error:
        # a partly cached repository is usable; reading a missing file raises its own error
        for file in ("config.json", ADAPTER_CONFIG, GLINER_CONFIG) if offline else ():
            config = try_to_load_from_cache(name, file, cache_dir=cache, revision=revision)
            if isinstance(config, str):
                return Path(config).parent
        raise LoadError(_download_error(name, revision, error, offline)) from error


def _download_error(name: str, revision: str | None, error: Exception, offline: bool) -> str:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    if offline:
        return (
            f"{name!r} is neither a folder nor in the hub cache, and HF_HUB_OFFLINE forbids downloads; "
            "pass a folder, or unset HF_HUB_OFFLINE"
        )
    if isinstance(error, GatedRepoError) or (isinstance(error, HfHubHTTPError) and status == 403):
        return f"access to {name!r} on the hub is restricted; request access on its page and set HF_TOKEN"
    if isinstance(error, RevisionNotFoundError):
        return f"{name!r} has no revision {revision!r} on the hub; expected a branch, tag or commit"
    if isinstance(error, RepositoryNotFoundError) or status == 401:
        return (
            f"{name!r} is neither a folder nor a public model on the hub; check the name, or set HF_TOKEN if it "
            "is private"
        )
    return (
        f"{name!r} is not a folder and could not be downloaded from the hub ({type(error).__name__}: "
        f"{first_line(error)}); pass a folder, or check the network"
    )
