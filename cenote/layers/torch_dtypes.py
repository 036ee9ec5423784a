"""Convert the names of dtypes and devices, and numpy arrays, to those of torch, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cenote.config.device import Device
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype

# dtypes that are ml_dtypes' in numpy, under the same names in torch, which does not know theirs: integers of their size
BITS: dict[str, tuple[type[np.generic], torch.dtype]] = {
    "bfloat16": (np.int16, torch.int16),
    "float8_e4m3fn": (np.uint8, torch.uint8),
    "float8_e4m3fnuz": (np.uint8, torch.uint8),
    "float8_e5m2": (np.uint8, torch.uint8),
    "float8_e5m2fnuz": (np.uint8, torch.uint8),
    "float8_e8m0fnu": (np.uint8, torch.uint8),
}


class _Writable:
    """The memory of a read-only array as that of a writable one: torch warns of an array that it must not write to.

    Nothing writes to weights. numpy keeps this object, and with it the array, as long as the memory is in use.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def to_torch_dtype(name: Dtype) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def to_torch_device(device: Device) -> torch.device:
    return torch.device(str(device))


def to_tensor(array: Array) -> Tensor:
    """Return a tensor with the memory of an array, also of one that is read-only; nothing may write to that one."""
    name = array.dtype.name
    bits = array.view(BITS[name][0]) if name in BITS else array
    tensor = torch.from_numpy(bits if bits.flags.writeable else np.asarray(_Writable(bits)))
    return tensor.view(getattr(torch, name)) if name in BITS else tensor


def to_array(tensor: Tensor) -> Array:
    """Return an array with the memory of a tensor; a copy on the CPU of one on a GPU."""
    name = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.detach().cpu()
    if name not in BITS:
        array: Array = tensor.numpy()
        return array
    import ml_dtypes

    dtype: Any = getattr(ml_dtypes, name)
    bits: Array = tensor.view(BITS[name][1]).numpy()
    return bits.view(dtype)
