"""Find the quantization method of a checkpoint and dequantize its weights when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.quantized.awq import add_awq_weights
from cenote.loading.quantized.bitsandbytes import add_bitsandbytes_weights
from cenote.loading.quantized.compressed_tensors import add_compressed_weights, has_fp8_weights
from cenote.loading.quantized.gptq import add_gptq_weights
from cenote.loading.quantized.scaled import add_fp8_weights
from cenote.loading.weights import CheckpointWeights

# replaces the tensors of a format in the weights by dequantized `NAME.weight`
AddWeights: TypeAlias = Callable[[CheckpointWeights, Mapping[str, Any]], None]

METHODS: dict[str, AddWeights] = {
    "fp8": add_fp8_weights,
    "fbgemm_fp8": add_fp8_weights,
    "compressed-tensors": add_compressed_weights,
    "gptq": add_gptq_weights,
    "awq": add_awq_weights,
    "bitsandbytes": add_bitsandbytes_weights,
}


def read_quantization_config(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """Return `quantization_config` of config.json with a supported method; None for a checkpoint without one."""
    config = checkpoint.read_json_object("config.json")
    text = config.get("text_config")
    parts = (config, text if isinstance(text, Mapping) else {})
    names = ("quantization_config", "compression_config")  # the second one is of older compressed-tensors
    found = next((part[name] for part in parts for name in names if part.get(name)), None)
    if found is None and (gptq := checkpoint.read_json_object("quantize_config.json")):  # of older GPTQ checkpoints
        found = {"quant_method": "gptq", **gptq}
    if found is None:
        return None
    source = checkpoint.folder / "config.json"
    if not isinstance(found, Mapping):
        raise LoadError(f"{source}: quantization_config is a {type(found).__name__}; expected a JSON object")
    method = _method_name(found)
    if method not in METHODS:
        raise LoadError(
            f"{source}: the weights are quantized with quant_method={method!r}, which is not supported; supported are: "
            f"{', '.join(METHODS)}. Use the original checkpoint, with quantization=int8 or fp8 if it is too large"
        )
    return {**found, "quant_method": method}


def _method_name(config: Mapping[str, Any]) -> str | None:
    """Return the method; bitsandbytes did not store its name at first."""
    if config.get("quant_method") is None and (config.get("load_in_4bit") or config.get("load_in_8bit")):
        return "bitsandbytes"
    name = config.get("quant_method")
    return name if name is None else str(name).lower()


def stores_fp8(config: Mapping[str, Any] | None) -> bool:
    """Return whether the weights are fp8 values, which a GPU can compute with."""
    if config is None:
        return False
    method = config["quant_method"]
    return method in ("fp8", "fbgemm_fp8") or (method == "compressed-tensors" and has_fp8_weights(config))


def add_dequantized_weights(weights: CheckpointWeights, config: Mapping[str, Any]) -> None:
    """Replace quantized tensors by readers that dequantize them in float32."""
    METHODS[config["quant_method"]](weights, config)
