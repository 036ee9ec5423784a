"""`cenote pull`: download the files of a model that loading needs."""

from __future__ import annotations

import json

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint, is_offline
from cenote.loading.describe import describe_model
from cenote.loading.fingerprint import check_fingerprint, compute_fingerprint
from cenote.loading.model_files import list_missing_files, list_weight_files


def pull_model(config: EngineConfig, *, as_json: bool = False) -> int:
    """Download a model, its tokenizer and the base model of an adapter; print the folder and the fingerprint.

    The hub library shows the progress, and continues an interrupted download.
    """
    description = describe_model(config)
    checkpoint = description.checkpoint
    tokenizer = description.find_tokenizer() if description.architecture.reads_texts else None
    check_complete(checkpoint, tokenizer)
    fingerprint = compute_fingerprint(description, config)
    if config.expect_fingerprint is not None:
        check_fingerprint(fingerprint, config.expect_fingerprint, description.name)
    num_bytes = sum(path.stat().st_size for path in list_weight_files(checkpoint))
    values = {
        "model": checkpoint.name,
        "folder": str(checkpoint.folder),
        "fingerprint": str(fingerprint),
        "weights_bytes": num_bytes,
    }
    if as_json:
        print(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        print(f"folder       {checkpoint.folder}\nfingerprint  {fingerprint}")
    return 0


def check_complete(checkpoint: Checkpoint, tokenizer: Checkpoint | None) -> None:
    """Raise LoadError with the names of missing files: offline, a cache may have only some."""
    missing = list_missing_files(checkpoint, tokenizer)
    if not missing:
        return
    reason = "HF_HUB_OFFLINE forbids downloads; unset it" if is_offline() else "download the model again"
    raise LoadError(f"{checkpoint.name} is incomplete, {checkpoint.folder} has no {', '.join(missing)}; {reason}")
