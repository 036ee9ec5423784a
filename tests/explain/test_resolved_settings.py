"""The tables that translate names of modules and classes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from cenote.explain.resolved_settings import KERNEL_DESCRIPTIONS, KERNEL_NAMES, LINEAR_DESCRIPTIONS
from cenote.kernels import amx_linear, fp8, int8, linear, quantized_linear
from cenote.kernels.cpu import packed_linear
from cenote.layers import linear as plain


@pytest.mark.parametrize("module", KERNEL_NAMES)
def test_every_kernel_with_a_name_is_a_module(module: str) -> None:
    assert any(find_spec(f"cenote.kernels{package}.{module}") for package in ("", ".gpu"))
    assert KERNEL_NAMES[module] in KERNEL_DESCRIPTIONS


@pytest.mark.parametrize("name", LINEAR_DESCRIPTIONS)
def test_every_linear_layer_with_a_description_is_a_class(name: str) -> None:
    modules = (amx_linear, packed_linear, linear, int8, fp8, quantized_linear, plain)
    assert any(isinstance(getattr(module, name, None), type) for module in modules)
