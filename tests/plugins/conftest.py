"""Packages with plugins, installed for one test, and an engine that returns token ids."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from textwrap import dedent

import pytest

from cenote.config.engine import EngineConfig
from cenote.engine.engine import PoolingEngine
from cenote.engine.execution.executor import EchoExecutor
from cenote.loading.loaded_model import LoadedModel

CENOTE_GROUP, VLLM_GROUP = "cenote.io_processor_plugins", "vllm.io_processor_plugins"
InstallPlugin = Callable[..., str]
MODULE_COUNTER = count()
EXAMPLE = Path(__file__).parents[2] / "examples" / "near_duplicates"
TEXTS = [
    "How do I reset my password?",
    "Where is my parcel?",
    "How can I reset my password?",
    "Tell me where my parcel is!",
    "The cat sleeps on the warm stone.",
]


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallPlugin]:
    """Install packages as pip does: a module, and a .dist-info folder with its entry points."""
    modules: list[str] = []
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(plugin: str, source: str, *, group: str = CENOTE_GROUP, entry: str = "entry") -> str:
        module = f"plugin_{next(MODULE_COUNTER)}"
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(dedent(source).replace("THIS", module))
        dist_info = tmp_path / f"{module}-1.0.dist-info"
        dist_info.mkdir()
        (dist_info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (dist_info / "entry_points.txt").write_text(f"[{group}]\n{plugin} = {module}:{entry}\n")
        return module

    yield install
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def engine(loaded: LoadedModel) -> Iterator[PoolingEngine]:
    """An engine that returns the token ids of every prompt; its tasks are embed and token_embed."""
    engine = PoolingEngine(loaded, EngineConfig(dtype="float32"), EchoExecutor())
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def installed_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed the example."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"  # the build writes files next to the source
    shutil.copytree(EXAMPLE, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(folder / "target"), str(source)], check=True, timeout=150
    )
    return folder / "target"
