"""Model names are resolved to folders or hub downloads; errors name the cause."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

from cenote.config.engine import HubAccess
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint, find_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = [
    "README.md",
    "config.json",
    "model.safetensors",
    "pytorch_model.bin",
    "onnx/model.onnx",
    "onnx/config.json",
    "tokenizer.json",
    "vocab.txt",
    "spm.model",
    "chat_template.jinja",
    "1_Pooling/config.json",
    "2_Dense/model.safetensors",
    "2_Dense/pytorch_model.bin",
    "checkpoint-500/model.safetensors",
    "tf_model.h5",
    "training_args.bin",
]


@pytest.fixture(autouse=True)
def online_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache with offline mode."""

    def no_network(*_: Any) -> None:
        raise AssertionError("a connection was tried although HF_HUB_OFFLINE is set")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


class FakeHub:
    """Fake snapshot_download that records its arguments and copies matching files into a folder."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self.folder, self.files, self.calls = folder, files, 0

    def __call__(self, name: str, *, allow_patterns: list[str], ignore_patterns: list[str], **_: Any) -> str:
        self.calls += 1
        for file in filter_repo_objects(self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        return str(self.folder)

    def fetched(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


def test_a_folder_with_a_config_is_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')

    checkpoint = find_checkpoint(str(tmp_path))

    assert checkpoint.folder == tmp_path
    assert checkpoint.read_json("config.json") == {"a": 1}
    assert checkpoint.read_json("modules.json") is None
    assert checkpoint.find_file("modules.json") is None


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path, refused: Any) -> None:
    with refused(str(tmp_path / "nowhere"), "does not exist"):
        find_checkpoint(str(tmp_path / "nowhere"))


def test_an_empty_name_is_not_the_current_folder(refused: Any) -> None:
    with refused("name is empty"):
        find_checkpoint("")


def test_a_file_is_refused_as_model(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "model.bin").write_text("x")

    with refused("model.bin is a file"):
        find_checkpoint(str(tmp_path / "model.bin"))


@pytest.mark.parametrize(
    "name", ["model.gguf", "/folder/model.gguf", "org/Qwen3-Embedding-0.6B-GGUF", "org/a-GGUF:Q8_0"]
)
def test_a_gguf_model_is_refused_by_its_name(name: str, refused: Any) -> None:
    with refused(f"{name}: GGUF weights of llama.cpp are not supported; use the original model"):
        find_checkpoint(name)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a-q4.gguf"], "has GGUF weights of llama.cpp, which Cenote does not read; use the original model"),
        (["config.json", "onnx/model.onnx"], "has ONNX weights, which Cenote does not read; use the original model"),
        (["config.json", "openvino_model.xml", "openvino_model.bin"], "has OpenVINO weights"),
        (["config.json", "tf_model.h5"], "has TensorFlow weights, .*from_tf=True"),
        (["config.json", "flax_model.msgpack"], "has Flax weights, .*from_flax=True"),
        (["config.json", "model.bin", "vocabulary.json"], "has a CTranslate2 model"),
        (["config.json", "weights.npz"], "has weights of MLX"),
        (["Model.mlpackage/Manifest.json"], "has Core ML weights"),
        (["config.cfg", "meta.json"], "has a spaCy pipeline"),
        (["model_index.json", "unet/model.safetensors"], "has a Diffusers pipeline that generates images"),
        (["params.json", "consolidated.safetensors"], "has weights in Mistral's own format"),
    ],
)
def test_a_folder_for_other_software_is_refused_with_its_kind(files: list[str], message: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")

    with pytest.raises(LoadError, match=message):
        find_checkpoint(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text("{}")
    if "model_index.json" not in files:
        assert find_checkpoint(str(tmp_path)).folder == tmp_path  # the weights of torch are used


def test_the_error_for_a_folder_without_config_lists_its_files(tmp_path: Path, refused: Any) -> None:
    for name in "abcdefg":
        (tmp_path / name).touch()

    with refused("no config.json, found a, b, c, d, e and 2 more"):
        find_checkpoint(str(tmp_path))


def test_a_lone_tokenizer_needs_no_config(tmp_path: Path) -> None:
    assert find_checkpoint(str(tmp_path), needs_config=False).folder == tmp_path


@pytest.mark.parametrize("content", ["", '{"hidden_size": 3', "not json", b"\xff\xfe\x00"])
def test_a_damaged_json_file_is_named(tmp_path: Path, content: str | bytes, refused: Any) -> None:
    (tmp_path / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())

    with refused("config.json", "download it again"):
        Checkpoint("x", tmp_path).read_json("config.json")


def test_the_error_for_a_git_lfs_pointer_names_git_lfs_pull(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")

    with refused("tokenizer.json", "git lfs pull"):
        Checkpoint("x", tmp_path).read_json("tokenizer.json")


def test_a_missing_file_that_is_required_is_named(tmp_path: Path, refused: Any) -> None:
    with refused("modules.json is missing"):
        Checkpoint("x", tmp_path).require_json("modules.json")


def test_a_list_where_names_and_values_belong_is_refused(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "config.json").write_text("[1]")

    with refused("config.json contains a list"):
        Checkpoint("x", tmp_path).read_json_object("config.json")


@pytest.mark.parametrize("file", ["../secret.json", "/etc/passwd", "a/../../b"])
def test_no_file_outside_of_the_folder_is_read(tmp_path: Path, file: str, refused: Any) -> None:
    with refused("outside the model folder"):
        Checkpoint("x", tmp_path).find_file(file)


def test_a_broken_link_is_an_error(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")

    with refused("model.safetensors links to", "is missing"):
        Checkpoint("x", tmp_path).find_file("model.safetensors")


@pytest.mark.parametrize("folder", [None, "models"])
def test_a_cached_model_is_found_offline(folder: str | None, offline_cache: Path, tmp_path: Path) -> None:
    hub = HubAccess(download_dir=folder and str(tmp_path / folder))
    repository = (tmp_path / folder if folder else offline_cache) / "models--org--name"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_text("x")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)

    assert find_checkpoint("org/name", hub=hub).folder == snapshot
    assert find_checkpoint("org/name", revision=COMMIT, hub=hub).folder == snapshot


def test_offline_and_not_cached_tells_both_ways_on(offline_cache: Path, refused: Any) -> None:
    with refused("'org/name'", "pass a folder", "unset HF_HUB_OFFLINE"):
        find_checkpoint("org/name")


def test_a_name_without_an_owner_is_a_hub_name_too(offline_cache: Path, refused: Any) -> None:
    with refused("'gpt2'", "nor in the hub cache"):
        find_checkpoint("gpt2")


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        (errors.GatedRepoError, 403, ["request access on its page", "HF_TOKEN"]),
        (errors.RepositoryNotFoundError, 401, ["nor a public model", "HF_TOKEN"]),
        (errors.RepositoryNotFoundError, 404, ["nor a public model"]),
        (errors.RevisionNotFoundError, 404, ["no revision 'v9'"]),
        (errors.HfHubHTTPError, 500, ["could not be downloaded", "HfHubHTTPError"]),
    ],
)
def test_what_the_hub_answers_becomes_one_line(
    monkeypatch: pytest.MonkeyPatch, kind: type, status: int, words: list[str], refused: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise kind("first line\nsecond line", response=SimpleNamespace(status_code=status, headers={}, request=None))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)

    with refused("org/name", *words):
        find_checkpoint("org/name", revision="v9")


def test_a_network_error_becomes_one_line(monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)

    with refused("'org/name'", "ConnectionError: no route", "pass a folder"):
        find_checkpoint("org/name")


def test_safetensors_are_fetched_and_pickles_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(tmp_path, REPOSITORY)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)

    find_checkpoint("org/name")

    assert hub.fetched() == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "vocab.txt",
        "spm.model",
        "chat_template.jinja",
        "README.md",
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
    }
    assert hub.calls == 1


def test_pickles_are_fetched_where_there_are_no_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [file for file in REPOSITORY if not file.endswith(".safetensors")] + ["2_Dense/config.json"]
    hub = FakeHub(tmp_path, files)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)

    find_checkpoint("org/name")

    assert {file for file in hub.fetched() if file.endswith(".bin")} == {
        "pytorch_model.bin",
        "2_Dense/pytorch_model.bin",
    }


def test_both_heads_of_bge_m3_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = {"sparse_linear.pt", "colbert_linear.pt"}
    for files in (REPOSITORY, ["config.json", "pytorch_model.bin"]):
        hub = FakeHub(tmp_path / str(len(files)), [*files, *heads, "onnx/sparse_linear.pt", "training_args.pt"])
        monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)

        find_checkpoint("BAAI/bge-m3")

        assert {file for file in hub.fetched() if file.endswith(".pt")} == heads


def test_a_lone_tokenizer_is_fetched_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(tmp_path, REPOSITORY)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)

    find_checkpoint("org/name", needs_config=False)

    assert not any(file.endswith((".safetensors", ".bin")) for file in hub.fetched())
