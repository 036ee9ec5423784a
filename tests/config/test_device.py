"""Names of devices are parsed as torch parses them, without torch."""

import pytest
import torch

from cenote.config.device import OTHER_TYPES, Device, parse_device
from cenote.errors import LoadError


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:11", "cpu:0"])
def test_the_name_of_a_device_is_that_of_torch(name: str) -> None:
    device = parse_device(name)

    assert str(device) == str(torch.device(name)) == name
    assert (device.type, device.index) == (torch.device(name).type, torch.device(name).index)


def test_devices_are_equal_by_type_and_index() -> None:
    assert parse_device("cuda:1") == Device("cuda", 1) != Device("cuda")


@pytest.mark.parametrize("name", ["gpu", "CPU", " cpu", "cuda:", "cuda:01", "cuda:-1", "cuda:0:1", "cuda0", ""])
def test_a_name_that_torch_refuses_is_invalid(name: str) -> None:
    with pytest.raises(LoadError, match="invalid device=.*; expected one of: cpu, cuda, cuda:0, ..."):
        parse_device(name)

    with pytest.raises(RuntimeError):
        torch.device(name)


@pytest.mark.filterwarnings("ignore:.*no longer used as device type")
@pytest.mark.parametrize("name", [*sorted(OTHER_TYPES), "xpu:1"])
def test_another_device_of_torch_is_unsupported(name: str) -> None:
    with pytest.raises(LoadError, match="unsupported device=.*; expected one of: cpu, cuda, cuda:0, ..."):
        parse_device(name)

    assert torch.device(name).type == name.partition(":")[0]
