"""Read sentence_bert_config.json: arguments for the config and tokenizer of the encoder, and its maximum length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint

ENCODER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# the names of older and of newer versions
MODEL_ARGS = ("model_args", "model_kwargs")
CONFIG_ARGS = ("config_args", "config_kwargs")
TOKENIZER_ARGS = ("tokenizer_args", "processor_kwargs")
# arguments that do not change results
HARMLESS_ARGS = (
    *("torch_dtype", "dtype", "attn_implementation", "trust_remote_code", "use_fast", "device_map", "use_cache"),
    *("revision", "token", "cache_dir", "local_files_only", "subfolder", "padding_side", "low_cpu_mem_usage"),
)
APPLIED_TOKENIZER_ARGS = ("truncation_side", "model_max_length")
# arguments of the call of the tokenizer
HARMLESS_TEXT_VALUES: Mapping[str, tuple[Any, ...]] = {
    "padding": (True, False, "longest"),
    "truncation": (True, "longest_first", "only_first"),
    "return_tensors": ("pt", "np"),
    "return_attention_mask": (True,),
}
APPLIED_TEXT_ARGS = ("max_length", "add_special_tokens")


def find_encoder_file(checkpoint: Checkpoint) -> str | None:
    return next((file for file in ENCODER_FILES if checkpoint.find_file(file) is not None), None)


def read_encoder_args(checkpoint: Checkpoint, file: str | None, names: tuple[str, ...]) -> dict[str, Any]:
    """Return arguments in the encoder's file without those that do not change results; empty without a file."""
    values = {} if file is None else checkpoint.read_json_object(file)
    args: Any = next((values[name] for name in names if values.get(name) is not None), {})
    if not isinstance(args, Mapping):
        raise LoadError(f"{checkpoint.folder / str(file)}: {names[0]} is {args!r}; expected a mapping")
    return {name: value for name, value in args.items() if name not in HARMLESS_ARGS}


def read_text_args(checkpoint: Checkpoint, file: str | None) -> dict[str, Any]:
    """Return the arguments for tokenizing texts that change results."""
    kwargs = {} if file is None else checkpoint.read_json_object(file).get("processing_kwargs")
    text = kwargs.get("text") if isinstance(kwargs, Mapping) else None
    if not isinstance(text, Mapping):
        return {}
    return {name: value for name, value in text.items() if value not in HARMLESS_TEXT_VALUES.get(name, ())}


def read_max_length(checkpoint: Checkpoint, file: str | None) -> Sourced[int] | None:
    """Return the length to which texts are cut: of the tokenizer's call, of its arguments, or max_seq_length."""
    if file is None:
        return None
    written = {
        "processing_kwargs.text max_length": read_text_args(checkpoint, file).get("max_length"),
        "tokenizer_args model_max_length": read_encoder_args(checkpoint, file, TOKENIZER_ARGS).get("model_max_length"),
        "max_seq_length": checkpoint.read_json_object(file).get("max_seq_length"),
    }
    name = next((name for name, length in written.items() if length is not None), None)
    if name is None:
        return None
    length = written[name]
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise LoadError(f"{checkpoint.folder / file}: {name} is {length!r}; expected a number of tokens")
    return Sourced(length, file if name == "max_seq_length" else f"{file} {name}")
