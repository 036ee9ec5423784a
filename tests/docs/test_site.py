"""The documentation site builds without a warning, and its pages say what the program says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cenote.models.catalog import read_checked_models
from cenote.models.recommended_models import format_recommended_markdown, read_recommended_models

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_or_a_dead_link(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "cenote").symlink_to(ROOT / "cenote")
    zensical = Path(sys.executable).with_name("zensical")

    done = subprocess.run(
        [zensical, "build", "--config-file", "mkdocs.yml", "--strict"], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "late_chunking" in (tmp_path / "site/api/index.html").read_text()  # made from the docstrings
    assert (tmp_path / "site/search.json").exists() or list((tmp_path / "site").rglob("search*.js*"))


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]

    docs = ROOT / "docs"

    assert set(re.findall(r"\S+\.md", navigation)) == {str(path.relative_to(docs)) for path in docs.rglob("*.md")}


def test_the_page_of_models_to_begin_with_has_the_rows_of_the_command() -> None:
    assert (ROOT / "docs/choosing.md").read_text().endswith(format_recommended_markdown(read_recommended_models()))


def test_models_to_begin_with_are_checked_and_have_the_checked_facts() -> None:
    checked = {model.name.lower(): model for model in read_checked_models()}
    spelling = {"cross-encoder/ms-marco-minilm-l6-v2": "cross-encoder/ms-marco-minilm-l-6-v2"}
    for model in read_recommended_models():
        name = model.name.lower()
        found = checked.get(name) or checked[spelling[name]]
        assert found.check != "refused"
        if model.task not in ("late-interaction", "images"):
            assert found.settings["max_tokens"] == model.max_tokens, model.name
        if model.task == "embed":
            assert found.settings["dimensions"] == model.dimensions, model.name


def test_messages_of_the_troubleshooting_page_exist() -> None:
    table = (ROOT / "docs/troubleshooting.md").read_text().partition("## ")[0]
    messages = re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE)
    source = "".join(path.read_text() for path in (ROOT / "cenote").rglob("*.py"))

    assert len(messages) >= 10
    for message in messages:
        assert message in source, message
