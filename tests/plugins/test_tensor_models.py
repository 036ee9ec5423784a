"""Models with tensors as input and output, provided by plugin packages: the example, offline and in a server."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from cenote import LLM, BadRequest, LoadError, PoolingError, Unsupported
from cenote.inputs.prompt_parsing import parse_prompts
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.factories import LLMFactory

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensor_plugin"
TIMEOUT_S = 90.0
PACKAGE_COUNTER = count()


def install_package(folder: Path, package: str, entry_points: dict[str, dict[str, str]]) -> None:
    """Write the .dist-info folder of a package, as pip does."""
    dist_info = folder / "-".join([package.replace("-", "_"), "1.0.dist-info"])
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (dist_info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Return the import path with the example installed: its package, and the entry points of its pyproject.toml."""
    metadata_folder = tmp_path_factory.mktemp("dist_info")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install_package(metadata_folder, project["name"], project["entry-points"])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.syspath_prepend(str(metadata_folder))
        yield [str(metadata_folder), str(EXAMPLE)]


@pytest.fixture(scope="module")
def folder(path: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from band_masks.tiny import write_checkpoint

    folder = tmp_path_factory.mktemp("band_mixer")
    write_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def mask_llm(folder: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(folder, io_processor_plugin="band_masks", skip_tokenizer_init=True, enable_mm_embeds=True)


def make_scene(height: int, width: int, num_bands: int = 6) -> tuple[Tensor, str]:
    """Return the bands of a scene, and the same as a TIFF in base64."""
    bands = np.random.default_rng(height).integers(0, 256, (num_bands, height, width), dtype=np.uint8)
    first, *rest = map(Image.fromarray, bands)
    file = BytesIO()
    first.save(file, format="TIFF", save_all=True, append_images=rest)
    return torch.from_numpy(bands).float(), base64.b64encode(file.getvalue()).decode()


def compute_mask(folder: Path, bands: Tensor, location: tuple[float, float]) -> Tensor:
    """Run the model itself on every tile, without the engine."""
    from band_masks.model import make_model

    config = json.loads((folder / "config.json").read_text())
    model = make_model(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    mean, deviation = (torch.tensor(config[name])[:, None, None] for name in ("band_mean", "band_deviation"))
    _, height, width = bands.shape
    size = config["tile_size"]
    padded = torch.nn.functional.pad(
        (bands - mean) / deviation, (0, -width % size, 0, -height % size), mode="replicate"
    )
    mask = torch.zeros(padded.shape[1:], dtype=torch.uint8)
    for top in range(0, height, size):
        for left in range(0, width, size):
            tile = padded[None, :, top : top + size, left : left + size]
            with torch.inference_mode():
                scores = model(tile, torch.tensor([[location]], dtype=torch.float32))[0]
            mask[top : top + size, left : left + size] = scores.argmax(dim=0)
    return mask[:height, :width]


def decode_mask(result: dict[str, Any]) -> Tensor:
    return torch.from_numpy(np.array(Image.open(BytesIO(base64.b64decode(result["data"])))))


def run_plugin(llm: LLM, data: object) -> Any:
    (result,) = llm.encode({"data": data}, pooling_task="plugin", use_tqdm=False)
    return result.outputs


def test_the_mask_of_a_scene_is_the_models_output_for_its_tiles(mask_llm: LLM, folder: Path) -> None:
    bands, image = make_scene(100, 150)

    result = run_plugin(
        mask_llm, {"data": image, "data_format": "b64_json", "image_format": "tiff", "location": [47, 8]}
    )

    expected = compute_mask(folder, bands, (47, 8))
    assert torch.equal(decode_mask(result), expected)
    assert 0 < expected.float().mean() < 1, "random weights should give both classes"
    assert result["shares"][1] == pytest.approx(float((expected == 1).float().mean()), abs=1e-4)


def test_a_tensor_model_supports_only_the_plugin_task(mask_llm: LLM) -> None:
    assert mask_llm.supported_tasks == ("plugin",)
    assert mask_llm.engine.model_info.default_task == "plugin"
    with pytest.raises(Unsupported, match="Unsupported task: 'embed' Supported tasks: \\('plugin',\\)"):
        mask_llm.embed("a text", use_tqdm=False)


def test_data_that_the_plugin_refuses_is_a_bad_request(mask_llm: LLM) -> None:
    with pytest.raises(BadRequest, match="the image has 5 pages of 20 x 10; it must have 6"):
        run_plugin(mask_llm, {"data": make_scene(10, 20, num_bands=5)[1]})
    with pytest.raises(BadRequest, match="data_format must be 'b64_json', got 'url'"):
        run_plugin(mask_llm, {"data": "http://127.0.0.1/scene.tiff", "data_format": "url"})


def test_without_the_plugin_the_message_names_it(folder: Path) -> None:
    with pytest.raises(LoadError, match="BandMixerForSegmentation needs an IO processor plugin.* one of: band_masks"):
        LLM(str(folder))
    with pytest.raises(
        LoadError, match="'prithvi' IO Processor plugin but it is not installed. Available .*band_masks"
    ):
        LLM(str(folder), io_processor_plugin="prithvi")


def test_results_in_half_precision_are_returned_as_float32(folder: Path) -> None:
    with LLM(str(folder), dtype="bfloat16", device="cpu", io_processor_plugin="band_masks") as llm:
        plugin = llm.engine.io_processor.plugin
        prompts = plugin.pre_process(plugin.parse_data({"data": make_scene(64, 64)[1]}))
        (result,) = llm.engine.pool_sync(PoolRequest(task="plugin", inputs=parse_prompts(prompts)))

    assert isinstance(result, PoolResult)
    assert result.data.dtype == np.float32 and result.data.shape == (2, 64, 64)
    assert (result.num_tokens, result.token_ids.tolist()) == (1, [1])


# a package whose model returns tensors of the shape of its inputs, and whose plugin passes its data on unchanged
SOURCE = """
    import torch
    from cenote.plugins import IOProcessor

    def entry():
        return "MODULE.PassThrough"

    class PassThrough(IOProcessor):
        def parse_data(self, data):
            return data

        def pre_process(self, prompt, request_id=None, **kwargs):
            return [{"prompt_token_ids": [1], "multi_modal_data": {"image": tensors}} for tensors in prompt]

        def post_process(self, model_output, request_id=None, **kwargs):
            return [output.outputs.data for output in model_output]

    class Scaling(torch.nn.Module):
        tensor_shapes = {"x": (None, 2), "y": (1,)}

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("offset", torch.zeros(2))
            self.batches = []

        def forward(self, x, y):
            if (y < 0).any():
                raise ValueError("y is negative")
            self.batches.append(len(x))
            return x * self.weight + self.offset + y[:, None]

    def make(config):
        return Scaling()
"""
WEIGHTS = {"weight": torch.tensor([2.0, 3.0]), "offset": torch.tensor([0.5, 0.25])}
InstallPlugin = Callable[..., Path]


@pytest.fixture(scope="module")
def install_plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstallPlugin]:
    packages = tmp_path_factory.mktemp("packages")

    def install(weights: dict[str, Tensor] = WEIGHTS, source: str = SOURCE) -> tuple[str, Path]:
        """Return the name of the plugin and its package, and a checkpoint for its model."""
        name = f"scaling_{next(PACKAGE_COUNTER)}"
        (packages / f"{name}.py").write_text(dedent(source).replace("MODULE", name))
        groups = {
            "cenote.io_processor_plugins": {name: f"{name}:entry"},
            "cenote.tensor_models": {f"Model_{name}": f"{name}:make"},
        }
        install_package(packages, name, groups)
        checkpoint = tmp_path_factory.mktemp("checkpoint")
        (checkpoint / "config.json").write_text(json.dumps({"architectures": [f"Model_{name}"]}))
        save_file(weights, checkpoint / "model.safetensors")
        return name, checkpoint

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(packages))
        yield install  # type: ignore[misc]


def load_llm(name: str, checkpoint: Path) -> LLM:
    return LLM(str(checkpoint), dtype="float32", device="cpu", io_processor_plugin=name)


@pytest.fixture(scope="module")
def passthrough_llm(install_plugin: InstallPlugin) -> Iterator[LLM]:
    with load_llm(*install_plugin()) as llm:
        yield llm


def test_results_have_the_shapes_and_the_order_of_the_inputs(passthrough_llm: LLM) -> None:
    inputs = [{"x": torch.full((rows, 2), float(rows)), "y": torch.tensor([float(rows)])} for rows in (3, 1, 3, 0, 2)]

    results = run_plugin(passthrough_llm, inputs)

    assert [tuple(result.shape) for result in results] == [(3, 2), (1, 2), (3, 2), (0, 2), (2, 2)]
    for tensors, result in zip(inputs, results, strict=True):
        assert torch.equal(result, tensors["x"] * WEIGHTS["weight"] + WEIGHTS["offset"] + tensors["y"])
        assert not result.is_inference()


def test_inputs_of_one_shape_run_in_one_batch(passthrough_llm: LLM) -> None:
    batches = passthrough_llm.engine.model.backbone.model.batches
    batches.clear()

    run_plugin(passthrough_llm, [{"x": np.ones((4, 2), dtype=np.float16), "y": torch.zeros(1)}] * 6)

    assert batches == [6]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": torch.ones(1, 2)}, "requires the tensors x, y; got x$"),
        ({"x": torch.ones(1, 2), "y": torch.ones(1), "z": torch.ones(1)}, "got x, y, z$"),
        ({"x": torch.ones(1, 3), "y": torch.ones(1)}, r"x has shape \[1, 3\], Model_\w+ requires \[any, 2\]"),
        ({"x": [[1.0, 2.0]], "y": torch.ones(1)}, "x of multi_modal_data.image must be a tensor, got list"),
        ({"x": torch.ones(1, 2), "y": -torch.ones(1)}, "rejected the input: y is negative"),
    ],
    ids=["missing", "unknown", "shape", "kind", "refused by the model"],
)
def test_invalid_tensors_are_refused_by_name(passthrough_llm: LLM, tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        run_plugin(passthrough_llm, [tensors])

    assert len(run_plugin(passthrough_llm, [{"x": torch.ones(1, 2), "y": torch.ones(1)}])) == 1


def test_a_result_that_is_not_finite_is_an_error(passthrough_llm: LLM) -> None:
    with pytest.raises(PoolingError, match="contains NaN or infinity"):
        run_plugin(passthrough_llm, [{"x": torch.full((1, 2), torch.inf), "y": torch.ones(1)}])


def test_a_model_of_tokens_refuses_tensors_and_this_one_refuses_text(passthrough_llm: LLM, llm: LLM) -> None:
    with pytest.raises(Unsupported, match="has named tensors, but BertModel reads tokens"):
        llm.embed({"prompt_token_ids": [1], "multi_modal_data": {"image": {"x": torch.ones(1)}}}, use_tqdm=False)
    with pytest.raises(Unsupported, match="inputs are tensors, which its IO processor plugin makes from `data`"):
        passthrough_llm.engine.renderer.tokenize("a text")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"offset": torch.ones(2), "other": torch.ones(2)}, "the checkpoint has no weight"),
        ({"weight": torch.ones(2)}, "the checkpoint has no offset"),
        (WEIGHTS | {"extra.weight": torch.ones(1)}, "unexpected in the checkpoint: extra.weight"),
        (WEIGHTS | {"weight": torch.ones(3)}, r"weight has shape \[3\], config.json requires \[2\]"),
        (WEIGHTS | {"offset": torch.ones(3)}, r"offset has shape \[3\], config.json requires \[2\]"),
    ],
    ids=["parameter", "buffer", "extra", "shape", "shape of a buffer"],
)
def test_every_name_of_the_checkpoint_and_of_the_model_is_accounted_for(
    install_plugin: InstallPlugin, weights: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load_llm(*install_plugin(weights))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("return Scaling()", "raise KeyError('num_bands')"), "failed to build: KeyError: 'num_bands'"),
        (("return Scaling()", "return 5"), "is a int; expected a torch.nn.Module"),
        (('tensor_shapes = {"x": (None, 2), "y": (1,)}', ""), "has no tensor_shapes; expected a mapping"),
    ],
    ids=["fails", "no module", "no shapes"],
)
def test_a_package_without_a_usable_model_is_refused_with_the_reason(
    install_plugin: InstallPlugin, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load_llm(*install_plugin(source=SOURCE.replace(*change)))


def test_only_the_package_of_the_selected_plugin_brings_models(install_plugin: InstallPlugin) -> None:
    name, checkpoint = install_plugin()
    other, _ = install_plugin()

    with pytest.raises(LoadError, match=f"'{other}' belongs to another package; .* one of: {name}$"):
        load_llm(other, checkpoint)
    assert name not in sys.modules, "it must not be imported"


def test_the_server_returns_a_mask(path: list[str], folder: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "cenote", "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32", "--io-processor-plugin", "band_masks", "--skip-tokenizer-init"]
    log, python_path = tmp_path / "log", os.pathsep.join([*path, str(Path(__file__).parents[2])])
    with log.open("w") as log_file:
        server = subprocess.Popen(
            command, stdout=log_file, stderr=log_file, env=os.environ | {"PYTHONPATH": python_path}
        )
    bands, image = make_scene(70, 64)
    data = {"data": image, "data_format": "b64_json", "image_format": "tiff", "out_data_format": "b64_json"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            wait_until_ready(client, server, log)
            reply = client.post("/pooling", json={"data": data, "task": "plugin"})
            refused = client.post("/pooling", json={"data": data | {"data": "!"}})
            text = client.post("/pooling", json={"input": "a text"})
            embedded = client.post("/v1/embeddings", json={"input": "a text"})
    finally:
        server.terminate()
        server.wait(60)

    assert reply.status_code == 200, reply.text
    assert torch.equal(decode_mask(reply.json()["data"]), compute_mask(folder, bands, (0, 0)))
    assert refused.status_code == 400 and refused.json()["error"]["message"].startswith(
        "data is not a base64-encoded TIFF"
    )
    assert text.status_code == 400 and embedded.status_code == 400, (text.text, embedded.text)
    assert "BandMixerForSegmentation does not read text: its inputs are tensors" in text.json()["error"]["message"]


def wait_until_ready(client: httpx.Client, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + TIMEOUT_S
    while True:
        assert server.poll() is None and time.monotonic() < end, log.read_text()
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
