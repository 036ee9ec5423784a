"""Models saved by Sentence Transformers give the same embeddings as Sentence Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from torch import Tensor, nn
from torch.testing import assert_close

from cenote import LLM, LoadError, PoolerConfig, PoolingParams
from tests.tiny import TEXTS, change_config, randomize, save_tiny

HIDDEN = 32
MODES = ("cls", "lasttoken", "mean", "max", "mean_sqrt_len_tokens", "weightedmean")
PROMPT = "search query: "


def save_model(folder: Path, *modules: nn.Module, base: str = "BertModel", **options: Any) -> SentenceTransformer:
    """Save a Sentence Transformers model with a tiny encoder in `folder`."""
    inner = folder / "encoder"
    inner.mkdir()
    save_tiny(inner, base)
    model = SentenceTransformer(modules=[Transformer(str(inner)), *modules], device="cpu", **options)
    for seed, module in enumerate(modules):
        randomize(module, seed)
    model.save(str(folder / "model"), create_model_card=False)
    return model.eval()


def embed_texts(
    folder: Path, *, params: PoolingParams | None = None, prompt: str | None = None, **options: Any
) -> Tensor:
    with LLM(str(folder / "model"), dtype="float32", device="cpu", **options) as llm:
        outputs = llm.embed(TEXTS, pooling_params=params, prompt=prompt, use_tqdm=False)
    return torch.stack([output.outputs.data for output in outputs])


def reference_embeddings(model: SentenceTransformer, **options: Any) -> Tensor:
    out: Tensor = model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False, **options)
    return out


def assert_same(ours: Tensor, expected: Tensor) -> None:
    assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_pooling_mode_gives_the_same_embeddings(mode: str, tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, mode))  # type: ignore[arg-type]

    assert_same(embed_texts(tmp_path), reference_embeddings(model))


@pytest.mark.parametrize("base", ["RobertaModel", "ModernBertModel"])
def test_other_families_give_the_same_embeddings(base: str, tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"), Normalize(), base=base)

    assert_same(embed_texts(tmp_path), reference_embeddings(model))


def test_pooling_modes_are_concatenated_in_order(tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, ("max", "cls", "weightedmean")), Normalize())

    ours = embed_texts(tmp_path)

    assert ours.shape[-1] == 3 * HIDDEN
    assert_same(ours, reference_embeddings(model))


def test_without_a_normalize_module_embeddings_are_not_normalised(tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"))
    expected = reference_embeddings(model)
    assert (expected.norm(dim=-1) - 1).abs().min() > 0.1

    assert_same(embed_texts(tmp_path), expected)
    assert_same(
        embed_texts(tmp_path, params=PoolingParams(use_activation=True)), nn.functional.normalize(expected, dim=-1)
    )


def test_a_request_may_disable_the_normalize_module(tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"), Normalize())

    ours = embed_texts(tmp_path, params=PoolingParams(use_activation=False))

    assert (ours.norm(dim=-1) - 1).abs().min() > 0.1
    assert_same(nn.functional.normalize(ours, dim=-1), reference_embeddings(model))


def test_an_option_overrides_one_setting_of_the_files(tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "max"))
    unit = nn.functional.normalize(reference_embeddings(model), dim=-1)
    model[1].pooling_mode = "mean"

    assert_same(embed_texts(tmp_path, pooler_config=PoolerConfig(use_activation=True)), unit)
    assert_same(embed_texts(tmp_path, pooler_config=PoolerConfig(pooling_type="mean")), reference_embeddings(model))


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_include_prompt_of_the_files_is_respected(mode: str, include_prompt: bool, tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, mode, include_prompt=include_prompt))  # type: ignore[arg-type]

    assert_same(embed_texts(tmp_path, prompt=PROMPT), reference_embeddings(model, prompt=PROMPT))
    assert_same(embed_texts(tmp_path), reference_embeddings(model))


def test_a_prompt_is_selected_by_its_name(tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean", include_prompt=False), prompts={"query": PROMPT})

    with LLM(str(tmp_path / "model"), dtype="float32", device="cpu") as llm:
        outputs = llm.embed(TEXTS, prompt_name="query", use_tqdm=False)

    assert_same(
        torch.stack([output.outputs.data for output in outputs]), reference_embeddings(model, prompt_name="query")
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Identity(), nn.ReLU(), nn.GELU(), nn.Sigmoid(), nn.SiLU()])
def test_a_dense_module_gives_the_same_embeddings(activation: nn.Module, bias: bool, tmp_path: Path) -> None:
    dense = Dense(HIDDEN, 20, bias=bias, activation_function=activation)
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"), dense, Normalize())

    assert_same(embed_texts(tmp_path), reference_embeddings(model))


def test_dense_modules_and_norms_run_in_order(tmp_path: Path) -> None:
    model = save_model(
        tmp_path,
        Pooling(HIDDEN, ("cls", "mean")),
        Dense(2 * HIDDEN, 48, activation_function=nn.Identity()),
        LayerNorm(48),
        Dense(48, 16),
    )

    assert_same(embed_texts(tmp_path), reference_embeddings(model))


WRONG_SIZES: dict[str, tuple[list[nn.Module], str]] = {
    "dense after the backbone": (
        [Pooling(HIDDEN, "mean"), Dense(33, 20)],
        "2_Dense/.*in_features is 33, but the input from the backbone is 32",
    ),
    "dense after two pooling modes": (
        [Pooling(HIDDEN, ("cls", "mean")), Dense(HIDDEN, 20)],
        "2_Dense/.*in_features is 32, but the input from concatenated CLS and MEAN pooling is 64",
    ),
    "dense after dense": (
        [Pooling(HIDDEN, "mean"), Dense(HIDDEN, 20), Dense(33, 20)],
        "3_Dense/.*in_features is 33, but the input from 2_Dense/config.json is 20",
    ),
    "norm after the backbone": (
        [Pooling(HIDDEN, "mean"), LayerNorm(31)],
        "2_LayerNorm/.*dimension is 31, but the input from the backbone is 32",
    ),
}


@pytest.mark.parametrize("name", WRONG_SIZES)
def test_a_layer_with_a_wrong_input_size_makes_loading_fail(name: str, tmp_path: Path) -> None:
    modules, message = WRONG_SIZES[name]
    save_model(tmp_path, *modules)

    with pytest.raises(LoadError, match=message):
        embed_texts(tmp_path)


def test_a_shorter_embedding_is_truncated_before_it_is_normalised(tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"), Dense(HIDDEN, 20), Normalize())

    ours = embed_texts(tmp_path, params=PoolingParams(dimensions=7), hf_overrides={"is_matryoshka": True})

    assert_same(ours, reference_embeddings(model, truncate_dim=7, normalize_embeddings=True))


def test_token_embeddings_are_projected_and_normalised_too(tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"), Dense(HIDDEN, 20), Normalize())
    rows = model.encode(TEXTS, output_value="token_embeddings", show_progress_bar=False)

    with LLM(str(tmp_path / "model"), dtype="float32", device="cpu") as llm:
        outputs = llm.encode(TEXTS, pooling_task="token_embed", use_tqdm=False)

    with torch.inference_mode():
        for output, states in zip(outputs, rows, strict=True):
            assert_same(output.outputs.data, nn.functional.normalize(torch.tanh(model[2].linear(states)), dim=-1))


@pytest.mark.parametrize("size", [7, 20, 50])
def test_truncate_dim_cuts_what_is_normalised_already(size: int, tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"), Dense(HIDDEN, 20), Normalize(), truncate_dim=size)

    ours = embed_texts(tmp_path)

    assert ours.shape[-1] == min(size, 20)
    assert_same(ours, reference_embeddings(model))


def test_dimensions_of_a_request_replace_truncate_dim(tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"), Normalize(), truncate_dim=8)
    full, cut = (
        embed_texts(tmp_path, params=PoolingParams(dimensions=size), hf_overrides={"is_matryoshka": True})
        for size in (HIDDEN, 16)
    )

    assert_same(full, reference_embeddings(model, truncate_dim=HIDDEN))
    assert_same(cut, reference_embeddings(model, truncate_dim=16, normalize_embeddings=True))
    # a size that the files name needs no override
    assert embed_texts(tmp_path, params=PoolingParams(dimensions=8)).shape[-1] == 8


@pytest.mark.parametrize(
    "names",
    [
        {"module_input_name": "token_embeddings"},
        {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"},
        {"module_input_name": "sentence_embedding", "module_output_name": "token_embeddings"},
        {"module_input_name": "sentence_embedding"},
    ],
)
def test_normalize_changes_what_its_config_names(names: dict[str, str], tmp_path: Path) -> None:
    model = save_model(tmp_path, Pooling(HIDDEN, "mean"), Normalize(**names))

    assert_same(embed_texts(tmp_path), reference_embeddings(model))


def test_normalize_that_replaces_the_embedding_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, Pooling(HIDDEN, "mean"), Normalize("token_embeddings", "sentence_embedding"))

    with pytest.raises(LoadError, match="2_Normalize/config.json: the module replaces sentence_embedding"):
        embed_texts(tmp_path)


@pytest.mark.parametrize("flag", ["cls_token", "max_tokens", "lasttoken"])
def test_pooling_flags_may_be_numbers(flag: str, tmp_path: Path) -> None:
    save_model(tmp_path, Pooling(HIDDEN, "mean"))
    names = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    flags = {"word_embedding_dimension": HIDDEN} | {f"pooling_mode_{name}": int(name == flag) for name in names}
    (tmp_path / "model/1_Pooling/config.json").write_text(json.dumps(flags))

    assert_same(embed_texts(tmp_path), reference_embeddings(SentenceTransformer(str(tmp_path / "model"), device="cpu")))


@pytest.mark.parametrize(("written", "tokens", "used"), [(40, 16, 40), (16, 40, 16), (40, 66, 40)])
def test_max_seq_length_is_that_of_the_encoder_file(written: int, tokens: int, used: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(tmp_path, Pooling(HIDDEN, "mean"))
    change_config(folder, file="tokenizer_config.json", model_max_length=tokens)
    change_config(folder, file="sentence_bert_config.json", max_seq_length=written)
    reference = SentenceTransformer(str(folder), device="cpu")
    text = " ".join(["the old city"] * 30)

    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        (output,) = llm.embed([text], tokenization_kwargs={"truncate_prompt_tokens": -1}, use_tqdm=False)

    assert reference.max_seq_length == used == len(output.prompt_token_ids)
    assert_same(output.outputs.data, reference.encode(text, convert_to_tensor=True))


def test_max_seq_length_cannot_exceed_the_position_table(tmp_path: Path) -> None:
    folder, text = tmp_path / "model", "the old city " * 99
    save_model(tmp_path, Pooling(HIDDEN, "mean"))
    change_config(folder, file="sentence_bert_config.json", max_seq_length=512)

    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        (output,) = llm.embed([text], tokenization_kwargs={"truncate_prompt_tokens": -1}, use_tqdm=False)

    assert len(output.prompt_token_ids) == 66
    with pytest.raises((IndexError, RuntimeError)):  # Sentence Transformers does not lower it
        SentenceTransformer(str(folder), device="cpu").encode(text)
