"""Models from S3, and hub names with a scheme."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading import object_store
from cenote.loading.checkpoint import find_adapter, find_checkpoint
from cenote.utils.file_lock import lock_file
from cenote.utils.install_commands import install_command
from tests.loading.fake_s3 import FakeS3, run_fake_s3
from tests.tiny import tiny_bert

URI = "s3://models/team/tiny"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """A bucket with a tiny model below team/tiny, and the variables to reach it."""
    tiny_bert(tmp_path / "tiny")
    with run_fake_s3() as store:
        store.upload(tmp_path / "tiny", "team/tiny")
        variables = {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": "key-id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "CENOTE_CACHE_DIR": str(tmp_path / "cache"),
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield store


def test_a_folder_in_s3_is_downloaded_without_other_weight_formats(store: FakeS3) -> None:
    store.objects["team/tiny/onnx/model.onnx"] = b"other format"
    store.objects["team/tiny/pytorch_model.bin"] = b"pickle"
    store.objects["team/tiny/"] = b""
    store.objects["team/tiny-other/config.json"] = b"another model"

    found = find_checkpoint(f"{URI}/")

    files = {path.name for path in found.folder.rglob("*") if path.is_file()} - {".lock", ".etags.json"}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= files
    assert not files & {"model.onnx", "pytorch_model.bin"}
    assert (found.folder / "model.safetensors").read_bytes() == store.objects["team/tiny/model.safetensors"]


def test_pickled_weights_are_downloaded_if_there_are_no_others(store: FakeS3) -> None:
    store.objects["team/tiny/pytorch_model.bin"] = store.objects.pop("team/tiny/model.safetensors")

    assert (find_checkpoint(URI).folder / "pytorch_model.bin").is_file()


def test_only_changed_objects_are_downloaded_again_and_deleted_ones_are_removed(store: FakeS3) -> None:
    store.objects["team/tiny/extra.json"] = b"{}"
    folder = find_checkpoint(URI).folder
    store.downloads.clear()
    store.objects["team/tiny/config.json"] += b"\n"
    del store.objects["team/tiny/extra.json"]

    find_checkpoint(URI, needs_config=False)  # a tokenizer needs no weights, which stay

    assert store.downloads == ["team/tiny/config.json"]
    assert (folder / "config.json").read_bytes().endswith(b"\n")
    assert (folder / "model.safetensors").is_file() and not (folder / "extra.json").exists()


def test_an_adapter_may_be_in_s3(store: FakeS3) -> None:
    store.objects |= {"lora/adapter_config.json": b"{}", "lora/adapter_model.bin": b"weights"}

    folder = find_adapter("s3://models/lora").folder

    assert (folder / "adapter_config.json").is_file() and (folder / "adapter_model.bin").is_file()


def test_a_model_in_s3_embeds_a_text(store: FakeS3) -> None:
    with LLM(URI, dtype="float32") as llm:
        (output,) = llm.embed("hello")

    assert len(output.outputs.embedding) > 0


@pytest.mark.parametrize(
    "uri, message",
    [
        ("s3://models", "expected s3://bucket/path"),
        ("s3://models/nothing/here", "has no objects"),
        ("s3://another/model", "cannot be read: .*NoSuchBucket"),
        ("s3://models/evil", "outside the model folder"),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_error(store: FakeS3, uri: str, message: str) -> None:
    store.objects["evil/../../config.json"] = b"{}"

    with pytest.raises(LoadError, match=message):
        find_checkpoint(uri)


def test_wrong_credentials_are_one_error(store: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone-else")

    with pytest.raises(LoadError, match="AccessDenied.*check the name, AWS_ENDPOINT_URL and credentials"):
        find_checkpoint(URI)


def test_a_cache_folder_that_cannot_be_written_is_one_error(
    store: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CENOTE_CACHE_DIR", str(tmp_path / "file"))

    with pytest.raises(LoadError, match="set CENOTE_CACHE_DIR"):
        find_checkpoint(URI)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)

    with pytest.raises(LoadError, match=re.escape(f"boto3: {install_command('s3')}")):
        find_checkpoint(URI)


def test_hub_names_may_have_a_scheme_and_a_revision() -> None:
    config = EngineConfig(model="hf://owner/name:v2", tokenizer="hf://owner/tokenizer")

    assert (config.model, config.revision, config.tokenizer) == ("owner/name", "v2", "owner/tokenizer")
    assert EngineConfig(model="hf://owner/name:v2", revision="v3").revision == "v3"


def test_a_process_that_is_stopped_during_a_download_is_no_endless_wait(
    store: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "LOCK_TIMEOUT_S", 0.1)
    folder = find_checkpoint(URI).folder

    with (
        lock_file(folder / object_store.LOCK_FILE, 1),
        pytest.raises(LoadError, match=r"another process has held this lock for 0.1 s without progress: .*\.lock"),
    ):
        find_checkpoint(URI)
    assert find_checkpoint(URI).folder == folder


@pytest.mark.parametrize(
    "uri",
    ["s3://models/../../../victim", "s3://models/team/../../../victim", "s3://models/./tiny", "s3://models/a//b"],
)
def test_a_path_with_parts_that_name_no_folder_is_refused(store: FakeS3, uri: str, tmp_path: Path) -> None:
    store.objects[f"{uri.removeprefix('s3://models/')}/config.json"] = b"{}"
    before = set(tmp_path.rglob("*"))

    with pytest.raises(LoadError, match=re.escape(f"invalid model {uri!r}: a part of the path is empty, '.' or '..'")):
        find_checkpoint(uri)

    assert set(tmp_path.rglob("*")) == before


def test_a_link_does_not_lead_out_of_the_cache(store: FakeS3, tmp_path: Path) -> None:
    (tmp_path / "cache/s3/models").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "cache/s3/models/team").symlink_to(tmp_path / "victim")

    with pytest.raises(LoadError, match="s3://models/team/tiny would be stored in .*victim/tiny, outside .*cache/s3"):
        find_checkpoint(URI)

    assert list((tmp_path / "victim").iterdir()) == []


def test_the_list_of_files_comes_from_no_object(store: FakeS3, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    store.objects["team/tiny/.etags.json"] = b'{"../../../../../victim": "x"}'

    folder = find_checkpoint(URI).folder
    find_checkpoint(URI)

    assert (tmp_path / "victim").read_text() == "kept"
    assert b"victim" not in (folder / ".etags.json").read_bytes()
    assert "team/tiny/.etags.json" not in store.downloads
