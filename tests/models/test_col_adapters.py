"""ColQwen2, ColQwen2.5, ColPali and ColSmol as their authors publish them equal Transformers with the adapter merged.

Queries and pages have the prompts of the authors' processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.testing import assert_close
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from cenote import LLM
from cenote.errors import LoadError
from cenote.protocol.input_types import Conversation
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import PoolRequest
from tests.models import colpali, modernvbert
from tests.models.col_models import (
    ColModel,
    save_colnomic,
    save_colpali,
    save_colpali_base,
    save_colqwen,
    save_colqwen_base,
    save_colsmol,
    save_colsmol_base,
    write_adapter_config,
)
from tests.models.qwen_vl import make_image, reference_inputs

QUERY = "how big is the old river in berlin?"
PAGE = make_image(61, 47)
QWEN_PAGE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"


def qwen_inputs(folder: Path, text: str | None) -> dict[str, Tensor]:
    if text is None:
        return reference_inputs(folder, QWEN_PAGE, [PAGE])
    return reference_inputs(folder, f"Query: {text}" + "<|endoftext|>" * 10)


def colpali_inputs(folder: Path, text: str | None) -> dict[str, Tensor]:
    """The processor of Transformers writes what that of the authors writes."""
    inputs = colpali.processor()(images=[PAGE]) if text is None else colpali.processor()(text=[text])
    return {name: value for name, value in inputs.items() if name != "labels"}


def colsmol_inputs(folder: Path, text: str | None) -> dict[str, Tensor]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if text is not None:
        return {"input_ids": torch.tensor([tokenizer.encode(f"Query: {text}" + "<end_of_utterance>" * 10).ids])}
    pixels = Idefics3ImageProcessorPil(**modernvbert.IMAGE_FILE)(
        [[PAGE]], return_tensors="pt", return_row_col_info=True
    )
    (rows,), (columns,) = pixels.pop("rows")[0:1][0], pixels.pop("cols")[0:1][0]
    tile = "<image>" * modernvbert.PER_TILE
    tiles = "".join(
        "".join(f"<fake_token_around_image><row_{row}_col_{column}>{tile}" for column in range(1, columns + 1)) + "\n"
        for row in range(1, rows + 1)
    )
    image = f"{tiles}\n<fake_token_around_image><global-img>{tile}<fake_token_around_image>"
    prompt = f"<|im_start|>User:{image}Describe the image.<end_of_utterance>\nAssistant:"
    return {"input_ids": torch.tensor([tokenizer.encode(prompt).ids]), **pixels}


Inputs = Callable[[Path, str | None], dict[str, Tensor]]
MODELS: dict[str, tuple[Callable[[Path], ColModel], Inputs]] = {
    "colqwen2 adapter": (save_colqwen, qwen_inputs),
    "colqwen2.5 adapter": (lambda folder: save_colqwen(folder, "2.5"), qwen_inputs),
    "colnomic adapter": (save_colnomic, qwen_inputs),
    "colpali adapter": (save_colpali, colpali_inputs),
    "colsmol adapter": (save_colsmol, colsmol_inputs),
    "colqwen2 merged": (save_colqwen_base, qwen_inputs),
    "colqwen2.5 merged": (lambda folder: save_colqwen_base(folder, "2.5"), qwen_inputs),
    "colpali merged": (save_colpali_base, colpali_inputs),
    "colsmol merged": (save_colsmol_base, colsmol_inputs),
}


def opened(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", **options)


@pytest.fixture(scope="module", params=MODELS, ids=str)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    save, inputs = MODELS[request.param]
    folder = tmp_path_factory.mktemp("col") / "model"
    folder.mkdir()
    reference = save(folder)
    with opened(folder) as llm:
        yield llm, reference, inputs


def test_a_query_has_the_vectors_of_the_authors_program(loaded: Any) -> None:
    llm, reference, inputs = loaded
    request = PoolRequest(task="token_embed", inputs=[QUERY], role="query")

    (found,) = llm.engine.pool_sync(request)

    expected = reference.vectors(**inputs(reference.folder, QUERY))
    assert_close(torch.from_numpy(found.data), expected, atol=1e-4, rtol=0)


def test_a_page_is_scored_as_by_the_authors_program(loaded: Any) -> None:
    llm, reference, inputs = loaded
    content = [{"type": "image_pil", "image_pil": PAGE}]

    (found,) = llm.score(QUERY, {"content": content}, use_tqdm=False)

    query, page = (reference.vectors(**inputs(reference.folder, text)) for text in (QUERY, None))
    assert found.outputs.score == pytest.approx((query @ page.T).amax(1).sum().item(), abs=1e-3)


def test_a_page_alone_has_the_same_vectors_however_it_is_sent(loaded: Any) -> None:
    llm, reference, inputs = loaded
    parts = [{"type": "image_pil", "image_pil": PAGE}]

    (prompt,) = llm.encode({"prompt": "", "multi_modal_data": {"image": PAGE}}, pooling_task="token_embed")
    conversation = Conversation([{"role": "user", "content": parts}])
    (message,) = llm.engine.pool_sync(PoolRequest(task="token_embed", inputs=[conversation]))

    expected = reference.vectors(**inputs(reference.folder, None))
    assert_close(prompt.outputs.data, expected, atol=1e-4, rtol=0)
    assert_close(torch.from_numpy(message.data), expected, atol=1e-4, rtol=0)


@pytest.fixture
def adapter(tmp_path: Path) -> ColModel:
    folder = tmp_path / "colqwen2-v1.0"
    folder.mkdir()
    return save_colqwen(folder)


def test_a_missing_base_model_is_named_with_the_way_out(adapter: ColModel, tmp_path: Path) -> None:
    (tmp_path / "colqwen2-base").rename(tmp_path / "elsewhere")

    with pytest.raises(
        LoadError, match=r"adapter_config.json: this is an adapter for 'vidore/colqwen2-base', which was"
    ):
        opened(adapter.folder)
    with pytest.raises(LoadError, match=r'hf_overrides=\{"base_model_name_or_path": "FOLDER"\}$'):
        opened(adapter.folder)
    with opened(adapter.folder, hf_overrides={"base_model_name_or_path": str(tmp_path / "elsewhere")}) as llm:
        (found,) = llm.engine.pool_sync(PoolRequest(task="token_embed", inputs=[QUERY], role="query"))

    assert_close(torch.from_numpy(found.data), adapter.vectors(**qwen_inputs(adapter.folder, QUERY)), atol=1e-4, rtol=0)


def test_an_adapter_that_names_no_base_model_is_refused(adapter: ColModel) -> None:
    write_adapter_config(adapter.folder, None)

    with pytest.raises(LoadError, match="adapter_config.json has no base_model_name_or_path; pass the folder of"):
        opened(adapter.folder)


def test_an_adapter_of_another_model_is_refused_by_the_layer_it_changes(adapter: ColModel, tmp_path: Path) -> None:
    """As vidore/colpali of 2024, whose base model has no projection."""
    base = tmp_path / "colqwen2-base" / "model.safetensors"
    tensors = load_file(base)
    save_file({name: tensor for name, tensor in tensors.items() if "custom_text_proj" not in name}, base)

    with pytest.raises(LoadError, match="has no custom_text_proj.weight, which the adapter changes"):
        opened(adapter.folder)


def test_newer_weight_names_of_the_base_model_fit_an_older_adapter(adapter: ColModel, tmp_path: Path) -> None:
    base = tmp_path / "colqwen2-base" / "model.safetensors"
    tensors = load_file(base)
    newer = {"model.": "language_model."}
    renamed = {
        next((new + name.removeprefix(old) for old, new in newer.items() if name.startswith(old)), name): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, base)

    with opened(adapter.folder) as llm:
        (found,) = llm.engine.pool_sync(PoolRequest(task="token_embed", inputs=[QUERY], role="query"))

    assert_close(torch.from_numpy(found.data), adapter.vectors(**qwen_inputs(adapter.folder, QUERY)), atol=1e-4, rtol=0)


def test_a_long_query_is_truncated_in_its_text_and_not_in_its_suffix(adapter: ColModel) -> None:
    text, limit = "the cat is in the city " * 20, TokenizationParams(truncate_prompt_tokens=20)
    with opened(adapter.folder) as llm:
        (found,) = llm.engine.pool_sync(
            PoolRequest(task="token_embed", inputs=[text], role="query", tokenization=limit)
        )

    ids = qwen_inputs(adapter.folder, text)["input_ids"]
    kept = torch.cat((ids[:, :10], ids[:, -10:]), dim=1)
    assert_close(torch.from_numpy(found.data), adapter.vectors(input_ids=kept), atol=1e-4, rtol=0)


def test_plain_late_interaction_turns_the_prompts_of_queries_off(adapter: ColModel) -> None:
    with opened(adapter.folder, plain_late_interaction=True) as llm:
        (found,) = llm.engine.pool_sync(PoolRequest(task="token_embed", inputs=[QUERY], role="query"))

    expected = adapter.vectors(**reference_inputs(adapter.folder, QUERY))
    assert_close(torch.from_numpy(found.data), expected, atol=1e-4, rtol=0)


def test_an_adapter_beside_full_weights_is_warned_about(adapter: ColModel, caplog: pytest.LogCaptureFixture) -> None:
    base = adapter.folder.parent / "colqwen2-base"
    (base / "adapter_config.json").write_bytes((adapter.folder / "adapter_config.json").read_bytes())

    with opened(base):
        pass

    (line,) = [record.getMessage() for record in caplog.records if "adapter is not applied" in record.getMessage()]
    assert line.startswith(f"{base / 'adapter_config.json'}: ")


def test_a_dora_adapter_is_refused(adapter: ColModel) -> None:
    write_adapter_config(adapter.folder, "vidore/colqwen2-base", use_dora=True)

    with pytest.raises(LoadError, match="adapters of type DoRA are not supported"):
        opened(adapter.folder)


def test_the_class_that_an_adapter_was_trained_in_decides_unless_an_option_does(tmp_path: Path) -> None:
    folder = tmp_path / "nomic-embed-multimodal-3b"
    folder.mkdir()
    save_colnomic(folder)
    write_adapter_config(
        folder, "Qwen/Qwen2.5-VL-3B-Instruct", task_type=None, auto_mapping={"base_model_class": "BiQwen2_5"}
    )

    with pytest.raises(
        LoadError, match=rf"{folder}/adapter_config.json: auto_mapping says .* in BiQwen2_5, which is not supported"
    ):
        opened(folder)
    with opened(folder, hf_overrides={"architectures": ["ColQwen2_5"]}) as llm:
        assert llm.supported_tasks == ("token_embed",)
