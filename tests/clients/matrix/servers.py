"""The servers that clients are checked against: `cenote serve` processes with small models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cenote.config.engine import DEFAULT_MODEL
from tests.serving.server_process import ServerProcess
from tests.tiny import save_tiny, tiny_splade

KEY = "key-of-the-matrix"
NAMES = ["mini", "embed-english-v3.0"]  # the second: for clients that accept Cohere's names only
MATRYOSHKA = {"is_matryoshka": True}
EXACT = ("--dtype", "float32", "--device", "cpu")


def save_models(folder: Path) -> dict[str, Path]:
    """Save tiny models with random weights: a cross-encoder, a sparse encoder and a classifier."""
    folders = {name: folder / name for name in ("pairs", "splade", "classes")}
    for path in folders.values():
        path.mkdir(parents=True)
    save_tiny(folders["pairs"], "XLMRobertaForSequenceClassification", num_labels=1, max_position_embeddings=258)
    tiny_splade(folders["splade"])
    save_tiny(
        folders["classes"],
        "BertForSequenceClassification",
        id2label={0: "good", 1: "bad"},
        max_position_embeddings=256,
    )
    return folders


def write_model_table(file: Path, folders: dict[str, Path]) -> None:
    """Write the file for --models; JSON is YAML."""
    embedder = {
        "name": NAMES[0],
        "aliases": NAMES[1:],
        "source": DEFAULT_MODEL,
        "options": {"hf_overrides": MATRYOSHKA},
    }
    file.write_text(json.dumps([embedder, *({"name": name, "source": str(path)} for name, path in folders.items())]))


@contextmanager
def run_servers(folder: Path) -> Iterator[dict[str, str]]:
    """Start all servers and return their URLs: one with a key and all models, and one per model without a key."""
    folders = save_models(folder)
    write_model_table(folder / "models.yaml", folders)
    flags = {
        "all": ("--models", str(folder / "models.yaml"), "--api-key", KEY),
        "embed": ("--hf-overrides", json.dumps(MATRYOSHKA), "--served-model-name", *NAMES),
        "rerank": (str(folders["pairs"]), "--rerank-document-shape", "string"),
        "sparse": (str(folders["splade"]),),
        "classify": (str(folders["classes"]),),
    }
    with ExitStack() as stack:
        processes = {}
        for name, words in flags.items():
            processes[name] = ServerProcess(*words, *EXACT, "--disable-access-log", CENOTE_CACHE_DIR=str(folder))
            stack.callback(processes[name].stop)
        yield {name: process.wait_until_ready().address for name, process in processes.items()}
