"""An editable install is found from every folder, also from the one that holds a clone named cenote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGING_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
# the parent of the clone, a folder with nothing in it, and the folder of a notebook
FOLDERS = [".", "empty", "cenote/examples"]


def find_editable_files() -> list[str] | None:
    """Return the files of the editable install of these sources in the environment of the tests, None without one."""
    # not those of sys.path: the sources are there too, with metadata of their own
    for installed in distributions(name="cenote", path=[sysconfig.get_path("purelib")]):
        direct_url = installed.read_text("direct_url.json")
        if direct_url is not None and json.loads(direct_url)["url"] == ROOT.as_uri():
            return [file.name for file in installed.files or () if file.name.startswith("__editable__")]
    return None


INSTALLED_FILES = find_editable_files()
needs_editable_install = pytest.mark.skipif(INSTALLED_FILES is None, reason="other sources are installed here")


def run_python(folder: Path, code: str, *options: str) -> str:
    """Run code as a script or a notebook of the folder would be: the folder is first on sys.path."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a clone named cenote, which has the real packaging files and a package of two modules."""
    parent = tmp_path_factory.mktemp("parent")
    for folder in (*FOLDERS, "cenote/cenote/inputs", "cenote/cenote/kernels"):
        (parent / folder).mkdir(parents=True, exist_ok=True)
    clone = parent / "cenote"
    for name in (*PACKAGING_FILES, "cenote/version.py", "cenote/inputs/__init__.py"):
        shutil.copy(ROOT / name, clone / name)
    (clone / "cenote/inputs/wordpiece.c").write_text("int size(void) { return 0; }\n")  # compiles at once
    (clone / "cenote/__init__.py").write_text("class LLM: ...\n")
    return parent


@pytest.fixture(scope="module")
def editable_wheel(parent: Path) -> Path:
    """What pip installs for `--editable`."""
    subprocess.run(
        [sys.executable, "-c", BUILD, str(parent)], cwd=parent / "cenote", check=True, capture_output=True, text=True
    )
    return next(parent.glob("*.whl"))


@pytest.fixture(scope="module")
def site_folder(editable_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site-packages")
    zipfile.ZipFile(editable_wheel).extractall(folder)
    return folder


def test_the_install_is_a_path_and_no_finder(parent: Path, site_folder: Path) -> None:
    (path_file,) = site_folder.glob("__editable__*")

    assert path_file.suffix == ".pth"
    assert path_file.read_text().split() == [str(parent / "cenote")]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_native_code_is_built_in_place(parent: Path, editable_wheel: Path) -> None:
    assert (parent / "cenote/cenote/inputs/_wordpiece.abi3.so").is_file()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_package_is_imported_from_every_folder(folder: str, parent: Path, site_folder: Path) -> None:
    code = f"import site; site.addsitedir({str(site_folder)!r}); from cenote import LLM; import cenote as package"

    assert run_python(parent / folder, f"{code}; print(package.__file__)", "-S") == str(
        parent / "cenote/cenote/__init__.py"
    )


@needs_editable_install
@pytest.mark.parametrize("folder", FOLDERS)
def test_this_environment_finds_its_package_from_every_folder(folder: str, parent: Path) -> None:
    code = "import importlib.util; print(importlib.util.find_spec('cenote').origin)"

    assert run_python(parent / folder, code) == str(ROOT / "cenote" / "__init__.py")


@needs_editable_install
def test_this_environment_has_a_path_and_no_finder() -> None:
    assert INSTALLED_FILES is not None

    assert [Path(name).suffix for name in INSTALLED_FILES] == [".pth"], "installed by an earlier version: make setup"
