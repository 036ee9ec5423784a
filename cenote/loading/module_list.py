"""Read modules.json of a Sentence Transformers model: its chain of modules, and the folder of its encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.router import ROUTER_KINDS, ModuleRoute, read_router

MODULES_FILE = "modules.json"
# stage of each module type; modules must be in the order in which the pooler applies them
MODULE_STAGES = {
    "Transformer": 0,
    "MLMTransformer": 0,
    "CLIPModel": 0,
    "MultiModalTransformer": 0,
    "KaLMCrossEncoderModule": 0,
    "ZembedTransformer": 0,
    "StaticEmbedding": 0,
    "SparseStaticEmbedding": 0,
    "Pooling": 1,
    "SpladePooling": 1,
    "Dense": 2,
    "LayerNorm": 2,
    "Normalize": 3,
    "MultiVectorMask": 3,
    "LogitScore": 3,
    "FlexibleQuantizer": 3,
    "HierarchicalTokenPooling": 4,
}
STATIC_KINDS = ("StaticEmbedding", "SparseStaticEmbedding")
IGNORED_KINDS = ("Dropout",)  # has no effect at inference
MODULE_PACKAGES = ("sentence_transformers", "pylate")
# modules of repositories with their own code; supported without running it
CUSTOM_MODULES = (
    ("st_quantize", "FlexibleQuantizer"),  # pplx-embed: tanh, then int8
    ("custom_st", "MultiModalTransformer"),  # gme-Qwen2-VL: texts and images in a prompt of its own
    ("modeling_zembed", "ZembedTransformer"),  # zembed-1: a suffix after every text
)
SUFFIX_KINDS = ("ZembedTransformer",)  # whose suffix is in config_sentence_transformers.json
CUSTOM_CLASSES = ("KaLMCrossEncoderModule",)  # likewise, in whatever file of the repository
# architectures whose family does what their `custom_st.Transformer` does; the same name means other code elsewhere
CUSTOM_TRANSFORMERS = ("JinaCLIPModel",)


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the chain."""

    package: str
    kind: str  # one of MODULE_STAGES
    folder: str
    file: str = MODULES_FILE  # that lists it, for messages

    @property
    def stage(self) -> int:
        return MODULE_STAGES[self.kind]


def locate_encoder(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the folder of its encoder, which is not always the root."""
    encoder = next((step for step in read_module_list(checkpoint) if step.stage == 0), None)
    return checkpoint if encoder is None else replace(checkpoint, encoder_folder=encoder.folder)


def read_module_list(checkpoint: Checkpoint) -> list[Module]:
    """Return the modules in order, those of the checkpoint's route in the place of a Router; empty without a file."""
    entries = checkpoint.read_json(MODULES_FILE)
    source = checkpoint.folder / MODULES_FILE
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise LoadError(f"{source} contains a {type(entries).__name__}; expected a list of modules")
    steps: list[Module] = []
    for entry in entries:
        kind, folder = _read_entry(source.as_posix(), entry)
        if kind.rpartition(".")[2] in ROUTER_KINDS:
            router = read_router(checkpoint, folder)
            route = router.select(checkpoint.route)
            steps += [
                _parse_module(checkpoint, router.source, kind, module_folder, {}, router.file)
                for kind, module_folder in route.modules
            ]
        elif kind.rpartition(".")[2] not in IGNORED_KINDS:
            steps.append(_parse_module(checkpoint, source.as_posix(), kind, folder, entry))
    _check_order(source.as_posix(), steps)
    return steps


def read_routes(checkpoint: Checkpoint) -> tuple[ModuleRoute, ...]:
    """Return the routes of a model with a Router, the default first; empty for other models."""
    entries = checkpoint.read_json(MODULES_FILE)
    for entry in entries if isinstance(entries, list) else ():
        kind, folder = _read_entry((checkpoint.folder / MODULES_FILE).as_posix(), entry)
        if kind.rpartition(".")[2] in ROUTER_KINDS:
            return read_router(checkpoint, folder).routes
    return ()


def read_module_config(checkpoint: Checkpoint, step: Module) -> dict[str, Any]:
    file = str(PurePosixPath(step.folder) / "config.json")
    checkpoint.require_file(file)
    return checkpoint.read_json_object(file)


def _read_entry(source: str, entry: Any) -> tuple[str, str]:
    """Return type and folder of an entry of modules.json."""
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        raise LoadError(f"{source}: invalid module {entry!r}; expected an object with type and path")
    path = str(entry.get("path") or "")
    return entry["type"], "" if path == "." else path


def _parse_module(
    checkpoint: Checkpoint, source: str, kind: str, folder: str, entry: dict[str, Any], file: str = MODULES_FILE
) -> Module:
    package, _, rest = kind.rpartition("--")[2].partition(".")  # before "--": the repository of the code
    name = rest.rpartition(".")[2]
    # Jina: a custom Transformer that selects an adapter by task; supported without running its code
    is_custom = (package, name) == ("custom_st", "Transformer")
    selects_adapter = is_custom and "task" in (entry.get("kwargs") or ())
    is_native = is_custom and _is_custom_transformer(checkpoint)
    is_known = (package in MODULE_PACKAGES and name in MODULE_STAGES) or (package, name) in CUSTOM_MODULES
    if not selects_adapter and not is_native and not is_known and name not in CUSTOM_CLASSES:
        known = f"{', '.join(MODULE_STAGES)} of {' and '.join(MODULE_PACKAGES)}"
        if package not in MODULE_PACKAGES:
            known += ". Code of a checkpoint is never run; remove the module to use the model without it"
        raise LoadError(f"{source}: module type {kind!r} is not supported; expected one of: {known}")
    return Module(package, name, folder, file)


def _is_custom_transformer(checkpoint: Checkpoint) -> bool:
    names = checkpoint.read_json_object("config.json").get("architectures") or ()
    return any(name in CUSTOM_TRANSFORMERS for name in names)


def _check_order(source: str, steps: list[Module]) -> None:
    for previous, step in zip(steps, steps[1:], strict=False):
        if previous.stage > step.stage or (previous.stage == step.stage and step.stage < MODULE_STAGES["Dense"]):
            order = "Transformer, Pooling, Dense or LayerNorm, Normalize"
            raise LoadError(f"{source}: {step.kind} comes after {previous.kind}; the supported order is {order}")
    kinds = [step.kind for step in steps]
    if {"MLMTransformer", "SpladePooling"} & set(kinds) and (len(kinds) != 2 or kinds[1] != "SpladePooling"):
        expected = "a SPLADE model must be MLMTransformer or Transformer, then SpladePooling"
        raise LoadError(f"{source}: {', '.join(kinds)} is not supported; {expected}")
    if "SparseStaticEmbedding" in kinds and len(kinds) > 1:
        raise LoadError(f"{source}: {', '.join(kinds)} is not supported; SparseStaticEmbedding must be alone")
