"""jina-embeddings-v4 equals Transformers' Qwen2.5-VL with the adapter of a task merged by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.testing import assert_close

from cenote import LLM, PoolingParams
from cenote.errors import BadRequest, LoadError
from cenote.protocol.input_types import Conversation
from cenote.protocol.requests import PoolRequest
from tests.models.jina_v4 import save_jina_v4
from tests.models.qwen_vl import PLACEHOLDER, make_image, reference_inputs

PAGE, QUERY = make_image(61, 47), "how big is the old river?"
PAGE_PROMPT = f"<|im_start|>user\n{PLACEHOLDER}Describe the image.<|im_end|>\n"


class Reference:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model, self.projector, self.updates = save_jina_v4(folder)

    def states(self, task: str, text: str, *images: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return token ids, hidden states and projected vectors with a task's adapter."""
        changes = [
            (
                self.projector if name == "multi_vector_projector" else self.model.language_model.get_submodule(name),
                change,
            )
            for name, change in self.updates[task].items()
        ]
        for module, change in changes:
            module.weight.data += change
        inputs = reference_inputs(self.folder, text, images)
        with torch.inference_mode():
            hidden = self.model(**inputs).last_hidden_state[0]
            vectors = nn.functional.normalize(self.projector(hidden), dim=-1)
        for module, change in changes:
            module.weight.data -= change
        return inputs["input_ids"][0], hidden, vectors

    def page_vector(self, task: str) -> Tensor:
        ids, hidden, _ = self.states(task, PAGE_PROMPT, PAGE)
        start, end = (self.position(ids, token) for token in ("<|vision_start|>", "<|vision_end|>"))
        return nn.functional.normalize(hidden[start : end + 1].mean(0), dim=-1)

    def position(self, ids: Tensor, token: str) -> int:
        return ids.tolist().index(self.tokenizer.token_to_id(token))

    @property
    def tokenizer(self) -> Any:
        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("jina-v4"))


@pytest.fixture(scope="module", params=[None, "text-matching"])
def loaded(request: pytest.FixtureRequest, reference: Reference) -> Iterator[tuple[LLM, str]]:
    options = {} if request.param is None else {"default_adapter": request.param}
    with LLM(str(reference.folder), dtype="float32", device="cpu", **options) as llm:
        yield llm, request.param or "retrieval"


def test_a_text_is_a_query_by_default_and_the_mean_of_its_tokens(loaded: tuple[LLM, str], reference: Reference) -> None:
    llm, task = loaded
    (query,) = llm.embed(QUERY, use_tqdm=False)
    request = PoolRequest(task="embed", inputs=[QUERY], prompt_name="passage")
    (passage,) = llm.engine.pool_sync(request)

    for found, prefix in ((query.outputs.embedding, "Query"), (passage.data, "Passage")):
        _, hidden, _ = reference.states(task, f"{prefix}: {QUERY}")
        assert_close(torch.tensor(found), nn.functional.normalize(hidden.mean(0), dim=-1), atol=1e-4, rtol=0)


def test_a_page_is_the_mean_of_its_image(loaded: tuple[LLM, str], reference: Reference) -> None:
    llm, task = loaded
    message = Conversation([{"role": "user", "content": [{"type": "image_pil", "image_pil": PAGE}]}])

    outputs = llm.embed([{"prompt": "", "multi_modal_data": {"image": PAGE}}, QUERY], use_tqdm=False)
    (chat,) = llm.engine.pool_sync(PoolRequest(task="embed", inputs=[message]))

    expected = reference.page_vector(task)
    assert_close(torch.tensor(outputs[0].outputs.embedding), expected, atol=1e-4, rtol=0)
    assert_close(torch.from_numpy(chat.data), expected, atol=1e-4, rtol=0)
    _, hidden, _ = reference.states(task, f"Query: {QUERY}")
    text = nn.functional.normalize(hidden.mean(0), dim=-1)
    assert_close(torch.tensor(outputs[1].outputs.embedding), text, atol=1e-4, rtol=0)


def test_token_embeddings_are_projected_with_the_tasks_adapter(loaded: tuple[LLM, str], reference: Reference) -> None:
    llm, task = loaded
    inputs: list[Any] = [QUERY, {"prompt": "", "multi_modal_data": {"image": PAGE}}]

    text, page = llm.encode(inputs, pooling_task="token_embed", use_tqdm=False)

    assert_close(text.outputs.data, reference.states(task, f"Query: {QUERY}")[2], atol=1e-4, rtol=0)
    assert_close(page.outputs.data, reference.states(task, PAGE_PROMPT, PAGE)[2], atol=1e-4, rtol=0)


def test_its_sizes_may_be_asked_for_and_others_are_refused(loaded: tuple[LLM, str]) -> None:
    llm, _ = loaded
    (short,) = llm.embed(QUERY, pooling_params=PoolingParams(dimensions=16), use_tqdm=False)

    assert len(short.outputs.embedding) == 16
    with pytest.raises(BadRequest, match=r"only supports \[8, 16, 32\] matryoshka dimensions"):
        llm.embed(QUERY, pooling_params=PoolingParams(dimensions=12), use_tqdm=False)


def test_an_unknown_task_is_refused_with_the_list(reference: Reference) -> None:
    with pytest.raises(
        LoadError, match="invalid default_adapter 'sts'; expected one of: retrieval, text-matching, code"
    ):
        LLM(str(reference.folder), device="cpu", default_adapter="sts")


def test_merged_checkpoints_pool_like_the_original_by_their_name(tmp_path: Path) -> None:
    folder = tmp_path / "jina-embeddings-v4-vllm-retrieval"
    folder.mkdir()
    reference = Reference(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen2_5_VLForConditionalGeneration"]}))
    (folder / "modules.json").unlink()
    stored = {f"model.{name}": tensor.contiguous() for name, tensor in reference.model.state_dict().items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    prompt = {"prompt": PAGE_PROMPT, "multi_modal_data": {"image": PAGE}}

    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        (page,) = llm.embed(prompt, use_tqdm=False)

    reference.updates["none"] = {}
    assert_close(torch.tensor(page.outputs.embedding), reference.page_vector("none"), atol=1e-4, rtol=0)
