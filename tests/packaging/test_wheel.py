"""The sdist contains everything a wheel needs, and wheels built with and without a C compiler embed texts."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from cenote import LLM
from cenote.kernels.cpu_features import cpu_features

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "cenote", "lab")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def build(folder: Path, out: Path, *more: str, **variables: str) -> None:
    """Build without isolation, so that nothing is downloaded."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *more, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def dist_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from the contents of the sdist; return their folder."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            (folder / "source").mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    build(folder / "source", folder / "dist")
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel_without_compiler(dist_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("no_compiler")
    with tarfile.open(next(dist_folder.glob("*.tar.gz"))) as sdist:
        sdist.extractall(folder, filter="data")
    false = shutil.which("false")
    assert false is not None
    build(next(folder.iterdir()), folder / "dist", "--wheel", CC=false, CXX=false)
    return next((folder / "dist").glob("*.whl"))


def archive_files(archive: Path) -> set[str]:
    if archive.suffix == ".whl":
        return set(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def package_files(*suffixes: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / "cenote").rglob("*") if path.name.endswith(suffixes)}


def embed_hello(wheel: Path, folder: Path) -> tuple[list[float], str]:
    """Run `cenote embed hello` in a fresh environment with the dependencies of this one, but not its Cenote.

    Returns the embedding and the log.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # a folder named in a .pth file is searched last, and .pth files in it, as of an editable install, are ignored
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CENOTE_CONFIG")}
    isolated = {"cwd": folder, "env": {**variables, "HF_HUB_OFFLINE": "1"}, "text": True, "capture_output": True}

    code = "import importlib.util as util; print(util.find_spec('cenote').origin)"
    origin = subprocess.run([python, "-c", code], check=True, **isolated)
    assert Path(origin.stdout.strip()).is_relative_to(site)
    done = subprocess.run([folder / "bin" / "cenote", "embed", "hello", "--dtype", "float32"], **isolated)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["embedding"], done.stderr


def test_the_sdist_has_the_sources_for_every_platform(dist_folder: Path) -> None:
    files = archive_files(next(dist_folder.glob("*.tar.gz")))

    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= files
    assert package_files(".c", ".h") >= {"cenote/kernels/native.h"}
    assert package_files(".py", ".c", ".h", ".jinja", "py.typed", ".html", ".js", ".css", ".gz") <= files


def test_the_wheel_has_the_package_and_no_c_sources(dist_folder: Path) -> None:
    files = archive_files(next(dist_folder.glob("*.whl")))

    assert package_files(".py", ".jinja", "py.typed", ".html", ".js", ".css", ".svg", ".gz", ".txt") <= files
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files)
    assert not [name for name in files if name.endswith((".c", ".h")) or name.startswith(("tests", "lab"))]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other platform tags")
def test_one_wheel_per_platform_supports_every_version_of_python(
    dist_folder: Path, wheel_without_compiler: Path
) -> None:
    for wheel in (next(dist_folder.glob("*.whl")), wheel_without_compiler):
        assert wheel.stem.endswith(f"-cp311-abi3-linux_{platform.machine()}")


@needs_compiler
def test_the_wheel_embeds_in_a_fresh_environment_with_its_native_code(
    dist_folder: Path, tmp_path: Path, llm: LLM
) -> None:
    wheel = next(dist_folder.glob("*.whl"))
    libraries = [name for name in archive_files(wheel) if name.endswith(".so")]
    (expected,) = llm.embed(["hello"], use_tqdm=False)

    assert libraries and all(name.endswith(".abi3.so") for name in libraries)
    embedding, log = embed_hello(wheel, tmp_path / "venv")
    assert embedding == pytest.approx(expected.outputs.embedding, abs=1e-4)
    assert "was not built" not in log


def test_a_wheel_built_without_a_compiler_embeds_the_same_and_warns(
    wheel_without_compiler: Path, tmp_path: Path, llm: LLM
) -> None:
    (expected,) = llm.embed(["hello"], use_tqdm=False)

    assert not [name for name in archive_files(wheel_without_compiler) if name.endswith(".so")]
    embedding, log = embed_hello(wheel_without_compiler, tmp_path / "venv")
    assert embedding == pytest.approx(expected.outputs.embedding, abs=1e-4)
    has_kernels = sys.platform == "linux" and cpu_features().has_level
    assert ("the C library of the CPU kernels was not built" in log) == has_kernels
