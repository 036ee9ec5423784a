"""Text models published as PEFT adapters equal the base model with the adapter merged by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from cenote import LLM
from cenote.errors import LoadError
from tests.models.col_models import ALPHA, RANK, write_adapter_config
from tests.tiny import TEXTS, save_tiny, tiny_bert, tiny_qwen3_causal


def write_adapter(folder: Path, modules: dict[str, nn.Module], *, scale: float = ALPHA / RANK, **config: Any) -> None:
    """Write random LoRA matrices and merge them into the modules."""
    generator, tensors = torch.Generator().manual_seed(3), dict[str, Tensor]()
    for name, module in modules.items():
        rows, columns = module.weight.shape  # type: ignore[union-attr,misc]
        down, up = (torch.randn(shape, generator=generator) * 0.3 for shape in ((RANK, columns), (rows, RANK)))  # type: ignore[has-type]
        module.weight.data += up @ down * scale  # type: ignore[union-attr,operator]
        if isinstance(module, nn.Embedding):  # PEFT stores the update of the transposed table
            tensors |= {f"base_model.model.{name}.lora_embedding_A": up.T.contiguous()}
            tensors |= {f"base_model.model.{name}.lora_embedding_B": down.T.contiguous()}
        else:
            tensors |= {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
    save_file(tensors, folder / "adapter_model.safetensors")
    write_adapter_config(folder, "someone/base", **config)


def linear_layers(model: nn.Module, *names: str) -> dict[str, nn.Module]:
    return {path: module for path, module in model.named_modules() if path.rpartition(".")[2] in names}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("base", "adapter"):
        (tmp_path / name).mkdir()
    return tmp_path / "base", tmp_path / "adapter"


def test_an_embedder_of_sentence_transformers_saved_as_an_adapter_keeps_its_pooling(folders: tuple[Path, Path]) -> None:
    base, folder = folders
    model = tiny_bert(base)
    write_adapter(folder, linear_layers(model, "query", "value", "word_embeddings"))
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))

    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        outputs = llm.embed(TEXTS, use_tqdm=False)

    for output in outputs:
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([output.prompt_token_ids])).last_hidden_state[0]
        assert_close(torch.tensor(output.outputs.embedding), states.mean(0), atol=1e-4, rtol=0)


def test_an_adapter_of_all_layers_fits_a_base_model_without_pooler(folders: tuple[Path, Path]) -> None:
    base, folder = folders
    model = tiny_bert(base)
    tensors = load_file(base / "model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if "pooler" not in name}, base / "model.safetensors")
    write_adapter(folder, linear_layers(model, "query", "dense"), target_modules="all-linear")

    with LLM(str(folder), dtype="float32", device="cpu", pooler_config={"use_activation": False}) as llm:
        (output,) = llm.embed(TEXTS[0], use_tqdm=False)

    with torch.inference_mode():
        states = model(input_ids=torch.tensor([output.prompt_token_ids])).last_hidden_state[0]
    assert_close(torch.tensor(output.outputs.embedding), states[0], atol=1e-4, rtol=0)


def test_a_rank_stabilised_adapter_has_its_own_scale(folders: tuple[Path, Path]) -> None:
    base, folder = folders
    model = tiny_bert(base)
    write_adapter(folder, linear_layers(model, "dense"), scale=ALPHA / RANK**0.5, use_rslora=True)

    with LLM(str(folder), dtype="float32", device="cpu", pooler_config={"use_activation": False}) as llm:
        (output,) = llm.embed(TEXTS[0], use_tqdm=False)

    with torch.inference_mode():
        states = model(input_ids=torch.tensor([output.prompt_token_ids])).last_hidden_state[0]
    assert_close(torch.tensor(output.outputs.embedding), states[0], atol=1e-4, rtol=0)


def test_square_layers_stored_as_in_by_out_are_updated_transposed(folders: tuple[Path, Path]) -> None:
    base, folder = folders
    model = save_tiny(base, "GPT2Model")
    layer = model.h[0].attn.c_proj  # [in, out], square
    down, up = torch.randn(RANK, 32) * 0.3, torch.randn(32, RANK) * 0.3
    names = ("h.0.attn.c_proj.lora_A.weight", "h.0.attn.c_proj.lora_B.weight")
    save_file(
        {f"base_model.model.{name}": half for name, half in zip(names, (down, up), strict=True)},
        folder / "adapter_model.safetensors",
    )
    write_adapter_config(folder, "someone/base", fan_in_fan_out=True)
    layer.weight.data += (up @ down * (ALPHA / RANK)).T

    with LLM(str(folder), dtype="float32", device="cpu", pooler_config={"use_activation": False}) as llm:
        (output,) = llm.embed(TEXTS[0], use_tqdm=False)

    with torch.inference_mode():
        states = model(input_ids=torch.tensor([output.prompt_token_ids])).last_hidden_state[0]
    assert_close(torch.tensor(output.outputs.embedding), states[-1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["score", "score.modules_to_save", "score.modules_to_save.default"])
def test_a_reranker_adapter_makes_a_classifier_of_a_causal_base_model(name: str, folders: tuple[Path, Path]) -> None:
    """As castorini/rankllama-v1-7b-lora-passage: task_type SEQ_CLS, the head in the adapter."""
    base, folder = folders
    model = tiny_qwen3_causal(base)
    write_adapter(folder, linear_layers(model, "q_proj", "v_proj"), task_type="SEQ_CLS", modules_to_save=["score"])
    head = torch.randn(1, 32)
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors[f"base_model.model.{name}.weight"] = head
    if name != "score":  # what the adapter replaces is in a state dict that was not saved by PEFT
        tensors["base_model.model.score.original_module.weight"] = torch.randn(1, 32)
    save_file(tensors, folder / "adapter_model.safetensors")

    with LLM(str(folder), dtype="float32", device="cpu", pooler_config={"use_activation": False}) as llm:
        (output,) = llm.classify(TEXTS[0], use_tqdm=False)

    with torch.inference_mode():
        states = model.model(input_ids=torch.tensor([output.prompt_token_ids])).last_hidden_state[0]
    assert_close(torch.tensor(output.outputs.probs), head @ states[-1], atol=1e-4, rtol=0)


def test_an_adapter_on_the_transformers_backend_is_refused(folders: tuple[Path, Path]) -> None:
    base, folder = folders
    model = tiny_bert(base)
    write_adapter(folder, linear_layers(model, "query"))

    with pytest.raises(
        LoadError, match=r"adapters are merged only for architectures that cenote implements.*merge_and"
    ):
        LLM(str(folder), device="cpu", model_impl="transformers")
