"""What attackers reach first: connections, and the files of images, models, adapters and tokenizers."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path

import PIL.Image
import tokenizers
import torch
from safetensors.torch import save
from tokenizers.models import WordLevel

from cenote.inputs.media.image_header import read_header
from cenote.loading.checkpoint import ADAPTER_CONFIG, Checkpoint
from cenote.loading.legacy_tokenizers.sentencepiece_file import read_sentencepiece
from cenote.loading.peft_files import (
    check_lora_config,
    compute_scalings,
    open_adapter_weights,
    read_full_tensors,
    read_lora_pairs,
)
from cenote.loading.tokenizer_files import load_tokenizer_files
from cenote.loading.weights import open_weights_file
from tests.api.http.memory_transport import exchange_bytes
from tests.fuzz.coverage_fuzzer import Target

JSON_WORDS = (
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b'""',
    b'"\\ud800"',
    b"[]",
    b"{}",
    b"[" * 500,
    b"\xff",
    b"\\u0000",
    b"NaN",
)
REQUESTS = (
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    b'POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n{"input":1}',
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
    b"GET http://a/x?y=%41 HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" * 2,
)
HTTP_WORDS = (
    *(b"\r\n", b"\n", b"\r", b": ", b"\0", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"HTTP/1.1"),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"Host: b\r\n"),
)
LORA_CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_rslora": True, "rank_pattern": {}}
LORA_NAMES = (
    "base_model.model.q.lora_A.weight",
    "base_model.model.q.lora_B.weight",
    "base_model.model.x.modules_to_save",
)
NAMES = {"architectures": ["BertModel"], "model_type": "bert"}
SETTINGS = {"model_max_length": 16, "pad_token": "[PAD]", "added_tokens_decoder": {"0": {"content": "[UNK]"}}}


def make_targets(folder: Path) -> dict[str, Target]:
    """Return the targets, by name; `folder` is for the files that they read."""
    targets = [
        Target("connection", REQUESTS, lambda data: exchange_bytes([data]), HTTP_WORDS),
        Target(
            "image-header", _make_images(), lambda data: read_header(data, 64), (b"IDAT", b"acTL", b"ANMF", b"VP8X")
        ),
        Target(
            "safetensors", [_make_tensors("a", "b")], _file_reader(folder / "x.safetensors", _read_tensors), JSON_WORDS
        ),
        _make_peft_target(folder / "adapter"),
        _make_peft_config_target(folder / "adapter-config"),
        Target("sentencepiece", [_make_pieces()], _file_reader(folder / "spiece.model", read_sentencepiece)),
        _make_tokenizer_target(folder / "tokenizer", "tokenizer.json"),
        _make_tokenizer_target(folder / "tokenizer-config", "tokenizer_config.json"),
    ]
    return {target.name: target for target in targets}


def _file_reader(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path.parent.mkdir(parents=True, exist_ok=True)

    def run(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return run


def _make_images() -> list[bytes]:
    files = []
    for image_format in ("PNG", "JPEG", "WEBP", "GIF"):
        for frames in (1, 3):
            file = io.BytesIO()
            images = [PIL.Image.new("RGB", (4, 3), (80 * row, 0, 0)) for row in range(frames)]
            more = {"save_all": True, "append_images": images[1:]} if frames > 1 and image_format != "JPEG" else {}
            images[0].save(file, image_format, **more)
            files.append(file.getvalue())
    return files


def _make_tensors(*names: str) -> bytes:
    return save({name: torch.ones(2, 2) for name in names})


def _read_tensors(path: Path) -> None:
    weights = open_weights_file(path)
    for name in weights.names():
        weights.get(name)


def _make_peft_target(folder: Path) -> Target:
    folder.mkdir(parents=True)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(LORA_CONFIG))
    seed = _make_tensors(*LORA_NAMES)
    return Target("peft", [seed], _file_reader(folder / "adapter_model.safetensors", _read_adapter), JSON_WORDS)


def _make_peft_config_target(folder: Path) -> Target:
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(_make_tensors(*LORA_NAMES[:2]))
    words = (*JSON_WORDS, b'"alpha_pattern":{"q":2},', b'"use_dora":', b'"bias":"all"')
    seed = json.dumps(LORA_CONFIG).encode()
    return Target("peft-config", [seed], _file_reader(folder / ADAPTER_CONFIG, _read_adapter), words)


def _read_adapter(path: Path) -> None:
    checkpoint = Checkpoint("adapter", path.parent)
    config = checkpoint.read_json_object(ADAPTER_CONFIG)
    check_lora_config(config, ADAPTER_CONFIG)
    weights = open_adapter_weights(checkpoint)
    read_full_tensors(weights)
    compute_scalings(config, read_lora_pairs(weights), ADAPTER_CONFIG)


def _make_pieces() -> bytes:
    """Return a SentencePiece model: fields of Protocol Buffers with their numbers."""
    pieces = [
        b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", -1.0) for text in (b"<unk>", b"a", b"ab")
    ]
    normalizer = b"\x12\x00\x18\x01\x20\x01"
    trainer = b"\x18\x01\xc0\x02\x00"  # the algorithm, and the id of the unknown piece
    content = b"".join(b"\x0a" + bytes([len(piece)]) + piece for piece in pieces)
    return content + b"\x12" + bytes([len(trainer)]) + trainer + b"\x1a" + bytes([len(normalizer)]) + normalizer


def _make_tokenizer_target(folder: Path, file: str) -> Target:
    folder.mkdir(parents=True)
    raw = tokenizers.Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2}, unk_token="[UNK]"))
    raw.add_special_tokens(["[PAD]"])
    contents = {"config.json": NAMES, "tokenizer_config.json": SETTINGS, "tokenizer.json": json.loads(raw.to_str())}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    words = (*JSON_WORDS, b'"normalizer":{"type":"NFC"},', b'"pre_tokenizer":{"type":"Whitespace"},', b'"lstrip":true')
    seed = (folder / file).read_bytes()

    def read(path: Path) -> object:
        return load_tokenizer_files(Checkpoint("tokenizer", path.parent))

    return Target(file.removesuffix(".json").replace("_", "-"), [seed], _file_reader(folder / file, read), words)
