"""`python -m lab.big_model`: memory and speed of a reward model of the shape of Qwen2.5-72B in fp8.

No file has its weights: each tensor is made when the loader reads it, and goes through the loading and quantization of
a checkpoint. `--tiny --device cpu` runs the same in int8 on a CPU, within a second.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from torch import Tensor

from cenote.bench.random_batch import make_random_batch
from cenote.config.engine import EngineConfig, Quantization
from cenote.loading.load import LoadedModel, load_model
from cenote.loading.weights import CheckpointWeights

WEIGHT_STD = 0.02
NOISE_ELEMENTS = (1 << 24) + 37
MAX_START = 4096
REPEATS = 3
STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Shape:
    hidden_size: int = 8192
    num_layers: int = 80
    num_heads: int = 64
    num_kv_heads: int = 8
    intermediate_size: int = 29568
    vocab_size: int = 152064

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the names and shapes of a Qwen2ForRewardModel checkpoint."""
        hidden, keys = self.hidden_size, self.num_kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocab_size, hidden)
        for number in range(self.num_layers):
            layer = f"model.layers.{number}"
            for part, width in (("q", hidden), ("k", keys), ("v", keys)):
                yield f"{layer}.self_attn.{part}_proj.weight", (width, hidden)
                yield f"{layer}.self_attn.{part}_proj.bias", (width,)
            yield f"{layer}.self_attn.o_proj.weight", (hidden, hidden)
            for part in ("gate", "up"):
                yield f"{layer}.mlp.{part}_proj.weight", (self.intermediate_size, hidden)
            yield f"{layer}.mlp.down_proj.weight", (hidden, self.intermediate_size)
            for part in ("input", "post_attention"):
                yield f"{layer}.{part}_layernorm.weight", (hidden,)
        yield "model.norm.weight", (hidden,)
        for part, rows in (("0", hidden), ("2", 1)):
            yield f"score.{part}.weight", (rows, hidden)
            yield f"score.{part}.bias", (rows,)

    @property
    def quantized_bytes(self) -> int:
        """Return the size of the model with one byte per weight of its layers and two for everything else."""
        return sum(prod(size) * (1 if name.endswith("_proj.weight") else 2) for name, size in self.tensors())


TINY = Shape(hidden_size=256, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=512, vocab_size=1000)


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

    def __init__(self, shape: Shape) -> None:
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

    def _reader(self, name: str, number: int) -> Callable[[], Tensor]:
        shape, start = self.shapes[name], number * 37 % MAX_START

        def read() -> Tensor:
            values = self.noise[start : start + prod(shape)].view(shape)
            return values + 1 if "norm" in name else values

        return read


def write_settings(folder: Path, shape: Shape) -> None:
    """Write config.json and a tokenizer, without weights."""
    config = {
        "architectures": ["Qwen2ForRewardModel"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
    tokenizer.save(str(folder / "tokenizer.json"))


class MemoryMeter:
    """Peak memory: what torch has allocated on a GPU, the growth of the resident memory on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.start = 0 if device.type == "cuda" else _resident_peak()

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _resident_peak() - self.start

    def current(self) -> int | None:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None


def _resident_peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    return int(found[1]) * 1024 if found is not None else 0


def measure(
    shape: Shape, device: torch.device, quantization: Quantization, lengths: Sequence[int], batch_tokens: int
) -> BigModelResult:
    noise = NoiseWeights(shape)
    with tempfile.TemporaryDirectory() as folder:
        write_settings(Path(folder), shape)
        options = EngineConfig.from_kwargs(folder, device=str(device), quantization=quantization, dtype="bfloat16")
        meter = MemoryMeter(device)
        meter.reset()
        start = time.perf_counter()
        model = load_model(options, weights=noise.open(Path(folder)))
        _synchronize(device)
        load_seconds = time.perf_counter() - start
    peak_load, loaded = meter.peak(), meter.current()
    meter.reset()
    speeds = {length: _tokens_per_second(model, shape, device, length, batch_tokens) for length in lengths}
    size = shape.quantized_bytes
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
        peak_run_bytes=meter.peak(),
    )


def _tokens_per_second(model: LoadedModel, shape: Shape, device: torch.device, length: int, batch_tokens: int) -> float:
    """Return the speed of the backbone and the reward head for batches of texts of one length."""
    count = max(1, batch_tokens // length)
    batch = make_random_batch([length] * count, shape.vocab_size, device)
    head = model.pooler.heads.classifier
    assert head is not None, "a reward model has a head"
    best = float("inf")
    with torch.inference_mode():
        for number in range(REPEATS + 1):  # the first one compiles kernels
            start = time.perf_counter()
            rewards = head(model.backbone(batch).to(model.description.head_dtype.value))
            _synchronize(device)
            best = min(best, time.perf_counter() - start) if number else best
    assert rewards.shape == (count * length, 1) and bool(rewards.isfinite().all()), "rewards are finite"
    return count * length / best


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
    shape = TINY if options.tiny else Shape()
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
