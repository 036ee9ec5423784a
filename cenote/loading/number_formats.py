"""Device and number formats: the fourth stage of loading."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cenote.config.device import Device, parse_device
from cenote.config.engine import EngineConfig, Quantization
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.kernels.cpu.library import supports_format
from cenote.kernels.cpu_features import CPUFeatures, cpu_features
from cenote.loading.family import Family
from cenote.loading.linear_formats import packs_int8, resolve_matmul_dtype, resolve_quantization
from cenote.loading.quantized.methods import read_quantization_config, stores_fp8
from cenote.models.architecture import HFConfig
from cenote.models.registry import NO_FLOAT16
from cenote.utils.cuda_devices import has_cuda_driver
from cenote.utils.dtypes import Dtype
from cenote.utils.install_commands import torch_command
from cenote.utils.tensors import import_torch

logger = logging.getLogger("cenote")

# dtypes that a model computes in, by all their names
DTYPES: dict[str, Dtype] = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}
STORED_DTYPES = {**DTYPES, "float64": "float64", "double": "float64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormats:
    """The device of a model, and the formats that it computes in there."""

    device: Sourced[Device]
    dtype: Sourced[Dtype]
    head_dtype: Sourced[Dtype]
    matmul_dtype: Sourced[Dtype]  # in which linear layers multiply, if they are not quantized
    quantization: Sourced[Quantization | None]


def resolve_number_formats(options: EngineConfig, family: Family) -> NumberFormats:
    """Return the device and the formats: of the options, else of the checkpoint and the hardware."""
    config, cpu = family.layout.config, cpu_features()
    device = _resolve_device(next(iter(options.devices), options.device))
    dtype = resolve_dtype(
        config,
        _requested_dtype(options, family, cpu),
        device.value.type,
        native_bf16=cpu.has_bfloat16,
        supports_float16=config.get("model_type") not in NO_FLOAT16,
        multiplies_float16=supports_format("float16"),
    )
    is_fp8 = stores_fp8(read_quantization_config(family.layout.checkpoint))
    return NumberFormats(
        device=device,
        dtype=dtype,
        head_dtype=resolve_head_dtype(config, dtype.value, device.value.type, native_bf16=cpu.has_bfloat16),
        matmul_dtype=resolve_matmul_dtype(options.dtype, dtype.value, device.value),
        quantization=resolve_quantization(options.quantization, device.value, cpu, dtype.value, stores_fp8=is_fp8),
    )


def resolve_dtype(
    config: HFConfig,
    requested: str,
    device_type: str,
    *,
    native_bf16: bool,
    supports_float16: bool = True,
    multiplies_float16: bool = False,
) -> Sourced[Dtype]:
    """Return the dtype of the backbone; `supports_float16` is False if its activations overflow float16.

    `multiplies_float16`: the linear layers on this CPU multiply in float16, with inputs and results in float32.
    """
    if requested != "auto":
        if requested not in DTYPES:
            raise LoadError(f"invalid dtype={requested!r}; expected one of: auto, {', '.join(DTYPES)}")
        if device_type == "cpu" and multiplies_float16 and DTYPES[requested] == "float16":
            return Sourced("float32", f"dtype={requested}, in which linear layers multiply")
        computed = _check_cpu_dtype(Sourced(DTYPES[requested], "dtype"), "dtype", device_type, native_bf16=native_bf16)
        if computed.value == "float16" and not supports_float16:
            raise LoadError(f"dtype={requested!r} overflows in {config.model_type}; use bfloat16 or float32")
        return computed
    if device_type == "cpu":
        if native_bf16:
            return Sourced("bfloat16", "CPU with bfloat16 matrix units")
        return Sourced("float32", "CPU without bfloat16 units")
    stored = _read_stored_dtype(config)
    if stored == "bfloat16":
        return Sourced("bfloat16", "config.json")
    if not supports_float16:
        return Sourced("bfloat16", f"model type {config.model_type}, which overflows in float16")
    return Sourced("float16", "config.json" if stored == "float16" else f"config.json {stored}, run in float16")


def resolve_head_dtype(config: HFConfig, model_dtype: Dtype, device_type: str, *, native_bf16: bool) -> Sourced[Dtype]:
    """Return the dtype of pooling and heads."""
    requested = config.get("head_dtype")
    if requested is None:
        return Sourced("float32", "default")
    if requested == "model":
        return Sourced(model_dtype, "head_dtype in the config")
    if requested not in DTYPES:
        raise LoadError(f"invalid head_dtype={requested!r}; expected one of: model, {', '.join(DTYPES)}")
    decision = Sourced(DTYPES[requested], "head_dtype in the config")
    return _check_cpu_dtype(decision, "head_dtype", device_type, native_bf16=native_bf16)


def _check_cpu_dtype(requested: Sourced[Dtype], option: str, device_type: str, *, native_bf16: bool) -> Sourced[Dtype]:
    """Return the requested dtype, or float32 on a CPU without units for it, where torch is hundreds of times slower.

    Weights are float32 then as well: converting them for every product is up to 1.5 times slower from bfloat16 and up
    to 4 times slower from float16. On CPUs with fp16 instructions, float16 is the dtype of products of float32 models.
    """
    has_units = requested.value == "float32" or (requested.value == "bfloat16" and native_bf16)
    if device_type != "cpu" or has_units:
        return requested
    name = requested.value
    faster = "; bfloat16 is faster on this CPU" if native_bf16 else ""
    logger.warning("%s=%s: this CPU has no fast %s arithmetic; using float32%s", option, name, name, faster)
    return Sourced("float32", f"{option}={name}, run in float32 on this CPU")


def _read_stored_dtype(config: HFConfig) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in STORED_DTYPES:
        known = ", ".join(DTYPES)
        raise LoadError(f"{config.source}: dtype {name!r} is not supported; set dtype to one of: {known}")
    return STORED_DTYPES[name]


def _requested_dtype(options: EngineConfig, family: Family, cpu: CPUFeatures) -> str:
    if options.dtype != "auto":
        return options.dtype
    if family.architecture.is_static:
        return "float32"  # 16 bits would save nothing
    # on these CPUs int8 layers have inputs and results in float32
    has_float32_int8 = options.quantization == "int8" and packs_int8("float32", cpu)
    return "float32" if has_float32_int8 else "auto"


def _resolve_device(requested: str | None) -> Sourced[Device]:
    if requested is None:
        return Sourced(Device("cuda" if _has_gpu() else "cpu"), "detected hardware")
    device = parse_device(requested)
    if device.type == "cuda":
        _check_gpu(device, requested)
    return Sourced(device, "device")


def _has_gpu() -> bool:
    if not has_cuda_driver():  # torch, whose import takes seconds, would not find a GPU either
        return False
    torch = import_torch()
    return torch is not None and torch.cuda.is_available()


def _check_gpu(device: Device, requested: str) -> None:
    torch = import_torch()
    if torch is None:
        raise LoadError(
            f"device={requested!r}: a GPU needs torch, which is not installed; install it: {torch_command()}"
        )
    if (device.index or 0) >= (count := torch.cuda.device_count()):
        raise LoadError(f"device={requested!r} does not exist: torch {torch.__version__} found {count} GPUs")
