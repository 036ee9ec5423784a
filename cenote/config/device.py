"""Name the device of a model, and parse such a name, without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from cenote.errors import LoadError

DeviceType = Literal["cpu", "cuda"]
EXPECTED = "expected one of: cpu, cuda, cuda:0, ..."
# other devices that torch has a name for
OTHER_TYPES = (
    *("fpga", "hip", "hpu", "ideep", "ipu", "lazy", "maia", "meta", "mkldnn"),
    *("mps", "mtia", "opencl", "opengl", "privateuseone", "ve", "vulkan", "xla", "xpu"),
)
DEVICE_NAME = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]{0,2}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Device:
    """A CPU or a GPU; without an index, the current GPU."""

    type: DeviceType
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


def parse_device(text: str) -> Device:
    """Parse cpu, cuda or cuda:0; raise LoadError if it is another name."""
    match = DEVICE_NAME.fullmatch(text)
    name, index = match.groups() if match else ("", None)
    for kind in get_args(DeviceType):
        if name == kind:
            return Device(kind, None if index is None else int(index))
    if name in OTHER_TYPES:
        raise LoadError(f"unsupported device={text!r}; {EXPECTED}")
    raise LoadError(f"invalid device={text!r}; {EXPECTED}")
