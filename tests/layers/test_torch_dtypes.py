"""Dtypes, devices and arrays have the same meaning in numpy and torch, and arrays the same memory."""

from typing import get_args

import ml_dtypes
import numpy as np
import pytest
import torch

from cenote.config.device import Device
from cenote.layers.torch_dtypes import BITS, to_array, to_tensor, to_torch_device, to_torch_dtype
from cenote.utils.dtypes import Dtype, to_numpy_dtype


@pytest.mark.parametrize("name", get_args(Dtype))
def test_a_dtype_has_one_name(name: Dtype) -> None:
    assert str(to_torch_dtype(name)) == f"torch.{name}"
    assert to_numpy_dtype(name).name == name
    assert to_tensor(np.zeros(1, to_numpy_dtype(name))).dtype is to_torch_dtype(name)


def test_a_device_becomes_that_of_torch() -> None:
    assert to_torch_device(Device("cpu")) == torch.device("cpu")
    assert to_torch_device(Device("cuda", 1)) == torch.device("cuda:1")


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool", *BITS])
def test_arrays_and_tensors_of_every_dtype_share_memory(name: str) -> None:
    dtype = getattr(ml_dtypes, name) if name in BITS else name
    array = np.array([[1, 1, 0.5], [1, 0.25, 1]]).astype(dtype)

    tensor = to_tensor(array)
    back = to_array(tensor)

    assert str(tensor.dtype) == f"torch.{name}"
    assert tensor.double().tolist() == array.astype(float).tolist()
    assert back.dtype == array.dtype and back.tolist() == array.tolist()
    assert tensor.data_ptr() == array.ctypes.data == back.ctypes.data


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
def test_a_read_only_array_is_not_copied_and_torch_does_not_warn(dtype: type) -> None:
    array = np.ones((2, 3)).astype(dtype)
    array.flags.writeable = False

    tensor = to_tensor(array)

    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.tolist() == [[1, 1, 1]] * 2


def test_a_tensor_keeps_the_memory_of_its_array() -> None:
    buffer = np.arange(1 << 20, dtype=np.float32).tobytes()  # read-only, as a mapped file may be
    tensor = to_tensor(np.frombuffer(buffer, dtype=np.float32))
    del buffer

    others = [np.ones(1 << 20, dtype=np.float32) for _ in range(4)]

    assert len(others) == 4 and tensor[-1] == (1 << 20) - 1


def test_parts_transposed_arrays_scalars_and_empty_arrays_convert() -> None:
    array = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)

    assert to_tensor(array[1:, ::2]).tolist() == [[4, 6], [8, 10]]
    assert to_tensor(array.T).tolist() == array.T.tolist()
    assert to_tensor(np.array(2.0, dtype=ml_dtypes.bfloat16)).item() == 2
    assert to_tensor(np.zeros((0, 3), dtype=np.float32)).shape == (0, 3)


def test_a_parameter_becomes_an_array() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))

    assert to_array(parameter).tolist() == [1, 1]
