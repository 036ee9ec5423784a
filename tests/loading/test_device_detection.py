"""The device of a model is found without torch on a machine without a GPU driver, and by torch on others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cenote.config.device import Device
from cenote.config.engine import EngineConfig
from cenote.loading import number_formats
from cenote.loading.describe import describe_model
from cenote.utils import cuda_devices
from cenote.utils.cuda_devices import has_cuda_driver
from tests.tiny import tiny_bert


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bert(tmp_path)
    return tmp_path


def describe(folder: Path, **options: Any) -> Any:
    return describe_model(EngineConfig.from_kwargs(str(folder), **options))


@pytest.mark.parametrize("exists", [True, False])
def test_a_driver_is_found_by_its_files(exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (str(tmp_path / "missing"), str(tmp_path) if exists else str(tmp_path / "missing too"))
    monkeypatch.setattr(cuda_devices, "DRIVER_FILES", files)

    assert has_cuda_driver() is exists


def test_without_a_driver_the_device_is_the_cpu_and_torch_is_not_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(number_formats, "has_cuda_driver", lambda: False)
    monkeypatch.setattr(number_formats, "import_torch", lambda: pytest.fail("torch was imported"))

    device = describe(folder).device

    assert (device.value, device.source) == (Device("cpu"), "detected hardware")


@pytest.mark.parametrize("found", [True, False])
def test_with_a_driver_torch_decides(found: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_formats, "has_cuda_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)

    assert describe(folder).device.value == Device("cuda" if found else "cpu")


def test_with_a_driver_and_without_torch_the_device_is_the_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_formats, "has_cuda_driver", lambda: True)
    monkeypatch.setattr(number_formats, "import_torch", lambda: None)

    assert describe(folder).device.value == Device("cpu")


def test_a_gpu_needs_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    monkeypatch.setattr(number_formats, "import_torch", lambda: None)

    with refused("device='cuda': a GPU needs torch, which is not installed"):
        describe(folder, device="cuda")


def test_a_gpu_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    assert describe(folder, device="cuda:1").device.value == Device("cuda", 1)
    with refused(f"device='cuda:2' does not exist: torch {torch.__version__} found 2 GPUs"):
        describe(folder, device="cuda:2")


def test_names_of_devices_are_checked(folder: Path, refused: Any) -> None:
    with refused("invalid device='gpu'; expected one of: cpu, cuda, cuda:0, ..."):
        describe(folder, device="gpu")
    with refused("unsupported device='mps'; expected one of: cpu, cuda, cuda:0, ..."):
        describe(folder, device="mps")


def test_the_dtype_of_the_public_config_is_that_of_torch(folder: Path) -> None:
    description = describe(folder, dtype="float32", device="cpu")

    assert description.dtype.value == "float32"
    assert description.model_config.dtype is torch.float32
    assert description.model_config.head_dtype is torch.float32
