"""The tables that translate names of modules and classes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from cenote import LLM
from cenote.explain import resolved_settings
from cenote.explain.resolved_settings import IN_USE, KERNEL_DESCRIPTIONS, KERNEL_NAMES, LINEAR_DESCRIPTIONS
from cenote.kernels import fp8, linear, quantized_linear
from cenote.layers import int8, packed_linear
from cenote.layers import linear as plain
from tests.kernels.levels import needs_level
from tests.tiny import save_tiny


@pytest.mark.parametrize("module", KERNEL_NAMES)
def test_every_kernel_with_a_name_is_a_module(module: str) -> None:
    assert any(find_spec(f"cenote.kernels{package}.{module}") for package in ("", ".gpu"))
    assert KERNEL_NAMES[module] in KERNEL_DESCRIPTIONS


@pytest.mark.parametrize("name", LINEAR_DESCRIPTIONS)
def test_every_linear_layer_with_a_description_is_a_class(name: str) -> None:
    modules = (packed_linear, linear, int8, fp8, quantized_linear, plain)
    assert any(isinstance(getattr(module, name, None), type) for module in modules)


@pytest.mark.parametrize("has_amx_kernels", [True, False])
@pytest.mark.parametrize("has_level", [True, False])
def test_native_code_is_in_use_if_there_is_a_kernel_for_the_dtype(
    monkeypatch: pytest.MonkeyPatch, has_amx_kernels: bool, has_level: bool
) -> None:
    monkeypatch.setattr(resolved_settings.native_library, "is_available", lambda: has_amx_kernels)
    monkeypatch.setattr(resolved_settings, "load_level", lambda: object() if has_level else None)

    in_bfloat16 = resolved_settings.describe_native_code(True, uses_amx=True)
    in_float32 = resolved_settings.describe_native_code(True, uses_amx=False)

    assert (in_bfloat16 == IN_USE) is has_amx_kernels
    assert (in_float32 == IN_USE) is has_level


@needs_level
@pytest.mark.parametrize("family", ["Qwen3Model", "Gemma2Model"])  # without and with a soft limit of the scores
def test_the_attention_of_layers_in_one_call_is_that_of_the_level(family: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, family)
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        assert resolved_settings.resolve_settings(llm.engine).attention == "level"
