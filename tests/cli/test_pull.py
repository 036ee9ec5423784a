"""`cenote pull` downloads what loading needs, continues interrupted downloads, and says what is missing offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cenote.cli.main import main
from tests.cli.fake_hub import COMMIT, REPOSITORY, FakeHub, run_fake_hub
from tests.tiny import tiny_bert

UNUSED = ("onnx/model.onnx", "pytorch_model.bin", "checkpoint-5/model.safetensors", "tf_model.h5", "training_args.bin")


@dataclass
class HubCache:
    """Runs `cenote pull` in a process: huggingface_hub reads the address of the hub when it is imported."""

    hub: FakeHub
    folder: Path

    def pull(self, *flags: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))
        }
        environment |= {"HF_ENDPOINT": self.hub.url, "HF_HUB_CACHE": str(self.folder), "HF_HUB_DISABLE_XET": "1"}
        environment |= {"HF_HUB_OFFLINE": "1"} if offline else {}
        command = [sys.executable, "-m", "cenote", "pull", REPOSITORY, "--device", "cpu", *flags]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    @property
    def snapshot(self) -> Path:
        return self.folder / "models--owner--name" / "snapshots" / COMMIT


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    tiny_bert(folder)
    for name in UNUSED:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not needed")
    return folder


@pytest.fixture
def cache(repository: Path, tmp_path: Path) -> Iterator[HubCache]:
    with run_fake_hub(repository) as hub:
        yield HubCache(hub, tmp_path / "hub")


def test_only_the_files_that_loading_needs_are_downloaded(
    cache: HubCache, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = cache.pull("--json")

    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert (values["model"], values["folder"]) == (REPOSITORY, str(cache.snapshot))
    assert values["weights_bytes"] == (repository / "model.safetensors").stat().st_size
    fetched = {path.relative_to(cache.snapshot).as_posix() for path in cache.snapshot.rglob("*") if path.is_file()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= fetched
    assert not fetched & set(UNUSED)
    # the same files in a folder, with others beside them, have the same fingerprint
    assert main(["pull", str(repository), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == values["fingerprint"]
    assert done.stderr == ""  # no progress bar: standard error is not a terminal


@pytest.mark.slow
def test_an_interrupted_download_is_continued(tmp_path: Path) -> None:
    tiny_bert(tmp_path / "repository", intermediate_size=1 << 16)  # 33 MB: the hub library writes 10 MiB at a time
    weights = tmp_path / "repository" / "model.safetensors"
    with run_fake_hub(tmp_path / "repository") as hub:
        cache = HubCache(hub, tmp_path / "hub")
        hub.cut_after["model.safetensors"] = 12 * 1024**2

        done = cache.pull()

    assert done.returncode == 0, done.stderr
    requested = [header for name, header in hub.downloads if name == "model.safetensors"]
    assert requested == [None, f"bytes={10 * 1024**2}-"]
    assert (cache.snapshot / "model.safetensors").read_bytes() == weights.read_bytes()
    folder, fingerprint = done.stdout.splitlines()
    assert folder == f"folder       {cache.snapshot}"
    assert fingerprint.startswith("fingerprint  ")


@pytest.mark.slow
def test_offline_a_complete_cache_suffices_and_missing_files_are_named(cache: HubCache) -> None:
    absent = cache.pull(offline=True)
    assert absent.returncode == 78
    assert "HF_HUB_OFFLINE forbids downloads" in absent.stderr

    assert cache.pull().returncode == 0
    num_downloads = len(cache.hub.downloads)
    assert cache.pull(offline=True).returncode == 0
    assert len(cache.hub.downloads) == num_downloads

    (cache.snapshot / "model.safetensors").unlink()
    partial = cache.pull(offline=True)
    assert partial.returncode == 78
    assert "has no model.safetensors; HF_HUB_OFFLINE forbids downloads; unset it" in partial.stderr


def test_a_model_with_another_fingerprint_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["pull", str(repository), "--device", "cpu", "--expect-fingerprint", "0" * 12])

    assert status == 78
    assert "expected 000000000000" in capsys.readouterr().err
