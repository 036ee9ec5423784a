"""Environments of the client groups under .venv-clients/: each has its own interpreter or node_modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
REQUIREMENTS = ROOT / "tests" / "clients" / "environments"
ENVIRONMENTS = ROOT / ".venv-clients"
JAVASCRIPT = "javascript"


def prepare_environment(name: str, *, upgrade: bool) -> None:
    """Install the clients of a group, unless they are and their requirements have not changed."""
    folder = ENVIRONMENTS / name
    requirements = REQUIREMENTS / ("package.json" if name == JAVASCRIPT else f"{name}.txt")
    installed = folder / ".installed"
    if not upgrade and installed.exists() and installed.read_text() == requirements.read_text():
        return
    print(f"== installing the clients of {requirements.name}; the first time this takes minutes ==", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    if name == JAVASCRIPT:
        install_javascript(folder, requirements, upgrade=upgrade)
    else:
        install_python(folder, requirements, upgrade=upgrade)
    installed.write_text(requirements.read_text())


def install_python(folder: Path, requirements: Path, *, upgrade: bool) -> None:
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    # the constraint keeps the build of torch that this machine offers
    command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    command += ["--upgrade", "--upgrade-strategy", "eager"] if upgrade else []
    subprocess.run([*command, "--requirement", str(requirements)], check=True)


def install_javascript(folder: Path, requirements: Path, *, upgrade: bool) -> None:
    shutil.copy(requirements, folder / "package.json")
    if upgrade:
        (folder / "package-lock.json").unlink(missing_ok=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error"], cwd=folder, check=True)


def make_command(environment: str, file: Path) -> tuple[list[str], Path]:
    """Return the command that runs the checks in a file, and its working directory."""
    folder = ENVIRONMENTS / environment
    if environment != JAVASCRIPT:
        return [str(folder / "bin" / "python"), str(file)], file.parent
    for name in ("checks.mjs", file.name):  # node finds node_modules beside the file only
        shutil.copy(file.parent / name, folder / name)
    return ["node", file.name], folder
