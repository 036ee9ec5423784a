"""Commands that messages name are those that pip needs, and no file advises to install Cenote by name."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from cenote.utils.install_commands import install_command, reinstall_command

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# Cenote as a requirement that pip would look up in an index
NAMED = re.compile(r"pip\S* (?:install|download) (?!.*--no-index)[^`\n]*?(?<![\w./-])cenote(?![\w./=-])")


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_of_an_extra_names_its_packages(extra: str) -> None:
    assert shlex.split(install_command(extra)) == ["pip", "install", *EXTRAS[extra]]


def test_sources_that_are_not_installed_are_installed_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)

    assert shlex.split(install_command("s3")) == ["pip", "install", "-e", f"{ROOT}[s3]"]


def test_native_code_is_built_again_from_the_sources() -> None:
    assert shlex.split(reinstall_command())[-2:] == ["-e", str(ROOT)]


def test_a_wheel_is_built_again_from_a_folder_of_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cenote.utils.install_commands.SOURCES", tmp_path)

    assert reinstall_command() == "pip install --force-reinstall --no-deps FOLDER_OF_THE_SOURCES"


def list_advising_files() -> list[Path]:
    folders = ("cenote", "deploy", "docs", "examples", ".github")
    paths = [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    suffixes = ("", ".md", ".py", ".yaml", ".yml", ".toml", ".txt", ".cpu", ".cuda", ".ipynb", ".tpl", ".html", ".js")
    return [path for path in paths if path.is_file() and path.suffix in suffixes]


def test_no_file_installs_cenote_by_name_from_an_index() -> None:
    found = {str(path.relative_to(ROOT)): NAMED.findall(path.read_text()) for path in list_advising_files()}

    assert len(found) > 500
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("command", ["pip install 'cenote[ray]' faiss-cpu", "pip install --no-binary cenote cenote"])
def test_the_pattern_finds_cenote_by_name(command: str) -> None:
    assert NAMED.search(command)


@pytest.mark.parametrize("command", ["pip install -e '.[ray]'", "pip install dist/cenote-0.1.0-cp311.whl"])
def test_the_pattern_leaves_paths_alone(command: str) -> None:
    assert not NAMED.search(command)
