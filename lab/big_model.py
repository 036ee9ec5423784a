"""`python -m lab.big_model`: memory and speed of a reward model of the shape of Qwen2.5-72B in fp8.

No file has its weights: each tensor is made when the loader reads it, and goes through the loading and quantization of
a checkpoint. `--tiny --device cpu` runs the same in int8 on a CPU, within a second.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

import torch

from cenote.config.engine import EngineConfig, Quantization
from cenote.explain.workload import make_random_batch
from cenote.layers.torch_dtypes import to_array, to_torch_dtype
from cenote.loading.load import load_model
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.weights import CheckpointWeights
from cenote.utils.arrays import Array
from lab.memory import PeakMemory
from lab.shapes import WEIGHT_STD, ModelShape, is_norm_weight, write_settings

NOISE_ELEMENTS = (1 << 24) + 37
MAX_START = 4096
REPEATS = 3


QWEN_72B = ModelShape("qwen2.5-72b", 80, 8192, 64, 29568, 8, None, "Qwen2ForRewardModel", 152064)
TINY = ModelShape("tiny", 3, 256, 4, 512, 2, None, "Qwen2ForRewardModel", 1000)


def count_quantized_bytes(shape: ModelShape) -> int:
    """Return the size of the model with one byte per weight of its layers and two for everything else."""
    return sum(prod(size) * (1 if name.endswith("_proj.weight") else 2) for name, size in shape.tensors())


@dataclass(frozen=True, slots=True)
class BigModelResult:
    device: str
    quantization: str
    num_layers: int
    parameters: int
    quantized_bytes: int
    loaded_bytes: int | None  # None: not known on a CPU
    peak_load_bytes: int  # on a CPU: growth of the resident memory
    peak_over_quantized: float
    load_seconds: float
    tokens_per_second: dict[int, float]  # by length of the texts
    peak_run_bytes: int


class NoiseWeights:
    """Tensors of random numbers, all cut out of one buffer at places that depend on their names."""

    def __init__(self, shape: ModelShape) -> None:
        self.shapes = dict(shape.tensors())
        largest = max(map(prod, self.shapes.values()))
        block = torch.randn(min(largest + MAX_START, NOISE_ELEMENTS), generator=torch.Generator().manual_seed(0))
        block = (block * WEIGHT_STD).bfloat16()
        # random numbers take as long as loading: they are repeated, with a period that no row length divides
        self.noise = block.repeat(-(-(largest + MAX_START) // len(block)))

    def open(self, source: Path) -> CheckpointWeights:
        weights = CheckpointWeights(source)
        for number, name in enumerate(self.shapes):
            weights.add(name, source, self._reader(name, number))
        return weights

    def _reader(self, name: str, number: int) -> Callable[[], Array]:
        shape, start = self.shapes[name], number * 37 % MAX_START

        def read() -> Array:
            values = self.noise[start : start + prod(shape)].view(shape)
            return to_array(values + 1 if is_norm_weight(name) else values)

        return read


def measure(
    shape: ModelShape, device: torch.device, quantization: Quantization, lengths: Sequence[int], batch_tokens: int
) -> BigModelResult:
    noise = NoiseWeights(shape)
    with tempfile.TemporaryDirectory() as folder:
        write_settings(Path(folder), shape)
        options = EngineConfig.from_kwargs(folder, device=str(device), quantization=quantization, dtype="bfloat16")
        memory = PeakMemory(device)
        start = time.perf_counter()
        model = load_model(options, weights=noise.open(Path(folder)))
        _synchronize(device)
        load_seconds = time.perf_counter() - start
    peak_load = _measure_bytes(memory)
    loaded = torch.cuda.memory_allocated(device) if device.type == "cuda" else None
    memory = PeakMemory(device)
    speeds = {length: _tokens_per_second(model, shape, device, length, batch_tokens) for length in lengths}
    size = count_quantized_bytes(shape)
    return BigModelResult(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        quantization=quantization,
        num_layers=shape.num_layers,
        parameters=sum(prod(size) for _, size in shape.tensors()),
        quantized_bytes=size,
        loaded_bytes=loaded,
        peak_load_bytes=peak_load,
        peak_over_quantized=peak_load / size,
        load_seconds=load_seconds,
        tokens_per_second=speeds,
        peak_run_bytes=_measure_bytes(memory),
    )


def _tokens_per_second(
    model: LoadedModel, shape: ModelShape, device: torch.device, length: int, batch_tokens: int
) -> float:
    """Return the speed of the backbone and the reward head for batches of texts of one length."""
    count = max(1, batch_tokens // length)
    batch = make_random_batch([length] * count, shape.vocab_size, device)
    head = model.pooler.heads.classifier
    assert head is not None, "a reward model has a head"
    best = float("inf")
    with torch.inference_mode():
        for number in range(REPEATS + 1):  # the first one compiles kernels
            start = time.perf_counter()
            rewards = head(model.backbone(batch).to(to_torch_dtype(model.description.head_dtype.value)))
            _synchronize(device)
            best = min(best, time.perf_counter() - start) if number else best
    assert rewards.shape == (count * length, 1) and bool(rewards.isfinite().all()), "rewards are finite"
    return count * length / best


def _measure_bytes(memory: PeakMemory) -> int:
    on_host_mib, on_device_mib = memory.measure_mib()
    return round((on_host_mib if on_device_mib is None else on_device_mib) * 2**20)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def print_result(result: BigModelResult) -> None:
    gigabytes = 1e9
    billions = result.parameters / 1e9
    print(f"{billions:.2f} B parameters, {result.num_layers} layers, {result.quantization}, {result.device}")
    print(f"quantized size      {result.quantized_bytes / gigabytes:8.2f} GB")
    if result.loaded_bytes is not None:
        print(f"loaded              {result.loaded_bytes / gigabytes:8.2f} GB")
    share = result.peak_over_quantized
    print(f"peak while loading  {result.peak_load_bytes / gigabytes:8.2f} GB, {share:.3f} of the quantized size")
    print(f"peak while running  {result.peak_run_bytes / gigabytes:8.2f} GB")
    print(f"load time           {result.load_seconds:8.1f} s")
    for length, speed in result.tokens_per_second.items():
        print(f"{length:6} tokens/text  {speed:10.0f} tokens/s")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.big_model", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--layers", type=int, help="number of layers (default: 80, with --tiny 3)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048], help="tokens per text")
    parser.add_argument("--batch-tokens", type=int, default=16384, help="tokens per batch")
    parser.add_argument("--tiny", action="store_true", help="a small model, to test this program")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    shape = TINY if options.tiny else QWEN_72B
    shape = shape if options.layers is None else replace(shape, num_layers=options.layers)
    device = torch.device(options.device)
    quantization: Quantization = "fp8" if device.type == "cuda" else "int8"
    result = measure(shape, device, quantization, options.lengths, options.batch_tokens)
    if options.json:
        print(json.dumps(asdict(result)))
    else:
        print_result(result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
