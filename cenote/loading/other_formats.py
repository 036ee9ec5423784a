"""Model files of other software, which are refused by their name, with the way out."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from cenote.errors import LoadError

ORIGINAL = "use the original model with model.safetensors, which its page on the hub names as the base model"
CONVERT = "save it with Transformers 4: AutoModel.from_pretrained(FOLDER, {flag}=True).save_pretrained(NEW)"


class OtherFormat(NamedTuple):
    name: str
    patterns: tuple[str, ...]  # of paths in the folder, one of which tells the format
    way_out: str


GGUF = OtherFormat(
    "GGUF weights of llama.cpp", ("*.gguf",), f"{ORIGINAL}; --quantization int8 makes it as small as a Q8 file"
)
FORMATS = (
    GGUF,
    OtherFormat("ONNX weights", ("*.onnx",), f"{ORIGINAL}, or a revision that has it"),
    OtherFormat("OpenVINO weights", ("*openvino*.xml", "*.xml"), f"{ORIGINAL}, or a revision that has it"),
    OtherFormat("Core ML weights", ("*.mlmodel", "*.mlpackage"), ORIGINAL),
    OtherFormat(
        "TensorFlow weights", ("tf_model*.h5", "saved_model.pb", "*.ckpt.index"), CONVERT.format(flag="from_tf")
    ),
    OtherFormat("Flax weights", ("flax_model*.msgpack",), CONVERT.format(flag="from_flax")),
    OtherFormat("TensorFlow Lite weights", ("*.tflite",), ORIGINAL),
    OtherFormat("a CTranslate2 model", ("vocabulary.json", "vocabulary.txt", "shared_vocabulary.*"), ORIGINAL),
    OtherFormat("weights of MLX", ("weights.npz",), ORIGINAL),
    OtherFormat("a spaCy pipeline", ("config.cfg",), "use a token classification model: cenote models --task entities"),
)
# whatever else is in the folder
DIFFUSERS = OtherFormat(
    "a Diffusers pipeline that generates images",
    ("model_index.json",),
    "Cenote computes embeddings, scores and classes; for images use a model like google/siglip2-base-patch16-224",
)
MISTRAL = OtherFormat(
    "weights in Mistral's own format", ("params.json",), "use the repository's files for Transformers, with config.json"
)
TORCH_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")


def check_file(path: str) -> None:
    """Raise for a path that is a file, or the name of one, instead of a folder."""
    if path.lower().endswith((".gguf", "-gguf")) or "-gguf:" in path.lower():
        raise LoadError(f"{path}: {GGUF.name} are not supported; {GGUF.way_out}")
    if Path(path).expanduser().is_file():
        raise LoadError(f"{path} is a file; expected the folder with config.json")


def check_folder(folder: Path) -> None:
    """Raise for a folder with weights for other software only."""
    names = [str(path.relative_to(folder)) for pattern in ("*", "*/*") for path in folder.glob(pattern)]
    if has_any(names, DIFFUSERS.patterns):
        refuse(folder, DIFFUSERS)
    if "config.json" not in names and "modules.json" not in names and has_any(names, MISTRAL.patterns):
        refuse(folder, MISTRAL)
    if has_any(names, TORCH_WEIGHTS):
        return
    for other in FORMATS:
        if has_any(names, other.patterns):
            refuse(folder, other)


def has_any(names: list[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name.rpartition("/")[2], pattern) for name in names for pattern in patterns)


def refuse(folder: Path, other: OtherFormat) -> None:
    raise LoadError(f"{folder} has {other.name}, which Cenote does not read; {other.way_out}")
