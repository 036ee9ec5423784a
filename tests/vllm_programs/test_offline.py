"""Programs in the shape of vLLM's offline examples run with only the import changed, and get the model's numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close

import cenote
from cenote import LLM
from cenote.multimodal.utils import encode_image_url
from tests.api.app_client import add_chat_template
from tests.models.adapters import QWEN_TARGETS, save_adapter
from tests.models.reward_models import internlm2
from tests.models.rotary_encoders import save_adapted
from tests.models.tiny_qwen3_vl import IMAGE, make_image, save_tiny_qwen3_vl, states_of
from tests.plugins.conftest import InstallPlugin, install_plugin  # noqa: F401  # a fixture
from tests.scoring.rerankers import RERANKER_KINDS, reference_scores, save_reranker
from tests.tiny import (
    compute_hidden_states,
    compute_logits,
    save_tiny,
    tiny_bert_classifier,
    tiny_bert_token_classifier,
    tiny_bge_m3,
    tiny_qwen3,
    tiny_qwen3_classifier,
)
from tests.vllm_programs.program import PROGRAMS, change_imports, run_program

TEMPLATES = Path(cenote.__file__).parent / "inputs" / "score_templates"
PROMPTS = ["the cat is in the city", "a", "a red bird, a blue fish"]


def tokenize(folder: Path, texts: list[str]) -> list[list[int]]:
    with LLM(str(folder), dtype="float32") as llm:
        return [llm.get_tokenizer().encode(text) for text in texts]


def is_close(actual: Any, expected: Any) -> None:
    assert_close(torch.as_tensor(actual), torch.as_tensor(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("program", ["embed", "embed_older"])
def test_embed(program: str, tmp_path: Path) -> None:
    reference = tiny_qwen3(tmp_path)
    states = compute_hidden_states(reference, tokenize(tmp_path, PROMPTS))

    embeddings = run_program(program, "--model", str(tmp_path), "--dtype", "float32")

    is_close(embeddings, torch.stack([normalize(rows[-1], dim=-1) for rows in states]))


def test_embed_with_flags_and_a_file_of_options(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    reference = tiny_qwen3(folder)
    states = compute_hidden_states(reference, tokenize(folder, PROMPTS))
    (tmp_path / "options.yaml").write_text(f"model: {folder}\nenforce_eager: true\nmax-model-len: 32\n")
    flags = ["--config", str(tmp_path / "options.yaml"), "--pooler_config.pooling_type", "MEAN"]

    embeddings = run_program("embed", *flags, "--pooler-config.use_activation=false", "--tensor-parallel-size", "1")

    is_close(embeddings, torch.stack([rows.mean(dim=0) for rows in states]))


def test_classify(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen2ForSequenceClassification", num_labels=2)
    logits = compute_logits(reference, tokenize(tmp_path, PROMPTS))

    probs = run_program("classify", "--model", str(tmp_path))

    is_close(probs, torch.stack(logits).softmax(dim=-1))


def test_classify_with_a_lora_adapter(tmp_path: Path) -> None:
    plain = tiny_qwen3_classifier(tmp_path / "model", num_labels=3)
    adapted = save_adapter(tmp_path / "adapter", plain, QWEN_TARGETS, seed=1)
    ids = tokenize(tmp_path / "model", ["who live in the old city?"])

    with_adapter, without = run_program(
        "classify_lora", MODEL=str(tmp_path / "model"), LORA_PATH=str(tmp_path / "adapter")
    )

    is_close(with_adapter, compute_logits(adapted, ids)[0].softmax(dim=-1))
    is_close(without, compute_logits(plain, ids)[0].softmax(dim=-1))


def test_score(tmp_path: Path) -> None:
    reference = tiny_bert_classifier(tmp_path, num_labels=1)
    with LLM(str(tmp_path), dtype="float32") as llm:
        tokenizer = llm.get_tokenizer()
    pairs = [tokenizer("where is the dog?", text, return_tensors="pt") for text in PROGRAM_DOCUMENTS]
    with torch.inference_mode():
        expected = [reference(**pair).logits.sigmoid().item() for pair in pairs]

    scores = run_program("score", "--model", str(tmp_path))

    is_close(scores, expected)


PROGRAM_DOCUMENTS = ["the dog is in the city", "a red bird"]


def test_reward(tmp_path: Path) -> None:
    internlm2(tmp_path)

    outputs, rewards = run_program("reward", "--model", str(tmp_path))

    for output, reward in zip(outputs, rewards, strict=True):
        assert output.outputs.data.shape == (len(output.prompt_token_ids), 1)
        assert torch.equal(output.outputs.data, reward.outputs.data)


def test_sequence_reward_of_a_conversation(tmp_path: Path) -> None:
    reference = tiny_qwen3_classifier(tmp_path, num_labels=1)
    add_chat_template(tmp_path)

    prompt, output = run_program("sequence_reward", "--model", str(tmp_path))

    assert prompt == "user: who live in the city?.assistant: people."
    (logits,) = compute_logits(reference, [output.prompt_token_ids])
    is_close(output.outputs.data, logits.sigmoid())


def test_ner(tmp_path: Path) -> None:
    labels = {0: "O", 1: "B-LOC", 2: "I-LOC"}
    reference = tiny_bert_token_classifier(tmp_path, id2label=labels)
    (ids,) = tokenize(tmp_path, ["the people of berlin live in the city"])
    (logits,) = compute_logits(reference, [ids])

    labelled = run_program("ner", "--model", str(tmp_path))

    assert [token for token, _ in labelled] == ["the", "people", "of", "berlin", "live", "in", "the", "city"]
    assert [label for _, label in labelled] == [labels[row] for row in logits.argmax(dim=-1).tolist()[1:-1]]


def test_jina_v3_with_fewer_dimensions(tmp_path: Path) -> None:
    save_adapted(tmp_path)
    flags = ["--model", str(tmp_path), "--hf-overrides.is_matryoshka", "true"]

    full, cut = run_program("matryoshka", *flags)

    assert [len(vector) for vector in (*full, *cut)] == [32, 32, 16, 16]
    is_close(cut, normalize(torch.tensor(full)[:, :16], dim=-1))


def test_multi_vector_retrieval(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)

    outputs, scores = run_program("multi_vector", "--model", str(tmp_path))

    for output in outputs:
        rows = output.outputs.data
        assert rows.ndim == 2 and rows.shape[1] == 32
        is_close(rows.norm(dim=-1), torch.ones(len(rows)))
    with LLM(str(tmp_path), dtype="float32") as llm:
        texts = ["where is the dog?", *PROGRAM_DOCUMENTS]
        query, *documents = [output.outputs.data for output in llm.encode(texts, pooling_task="token_embed")]
    is_close(scores, [max_sim(query, document) for document in documents])


def test_late_chunking(tmp_path: Path) -> None:
    reference = tiny_qwen3(tmp_path)
    documents = ["the cat is in the city. a red bird, a blue fish", "two"]
    states = compute_hidden_states(reference, tokenize(tmp_path, documents))

    found = run_program("late_chunking", "--model", str(tmp_path), "--dtype", "float32", "--chunk-size", "3")

    for (vectors, num_tokens, texts), rows in zip(found, states, strict=True):
        assert num_tokens == len(rows)
        is_close(vectors, normalize(torch.stack([part.mean(0) for part in rows.split(3)]), dim=-1))
        assert len(texts) == len(vectors)
    assert (found[0][2][0], found[1][2]) == ("the cat is", ["two"])


def max_sim(query: Tensor, document: Tensor) -> float:
    return (query @ document.T).amax(dim=-1).sum().item()


def test_token_embeddings_of_texts_and_images(tmp_path: Path) -> None:
    reference = save_tiny_qwen3_vl(tmp_path)
    image = make_image(40, 30)

    text, tokens, pictured = run_program("token_embed_vision", MODEL=str(tmp_path), IMAGE_URL=encode_image_url(image))

    rows = states_of(reference, tmp_path, "query: the cat is in the city")
    is_close(text, normalize(normalize(rows, dim=-1).mean(dim=0), dim=-1))
    rows = states_of(reference, tmp_path, "query: a red bird")
    is_close(tokens, normalize(normalize(rows, dim=-1).mean(dim=0), dim=-1))
    assert pictured.shape == (32,)


def test_token_embeddings_with_the_options_of_older_releases(tmp_path: Path) -> None:
    reference = save_tiny_qwen3_vl(tmp_path)
    image = make_image(40, 30)

    text, pictured = run_program("token_embed_older", MODEL=str(tmp_path), IMAGE_URL=encode_image_url(image))

    rows = states_of(reference, tmp_path, "query: the cat is in the city")
    is_close(text, normalize(rows.mean(dim=0), dim=-1))
    rows = states_of(reference, tmp_path, f"<|im_start|>user\n{IMAGE}what is this?<|im_end|>\n", [image])
    with LLM(str(tmp_path), dtype="float32") as llm:
        before = len(llm.get_tokenizer().encode("<|im_start|>user\n"))
        after = len(llm.get_tokenizer().encode("what is this?<|im_end|>\n"))
    is_close(pictured, normalize(rows[before:-after].mean(dim=0), dim=-1))


def test_vision_embedding(tmp_path: Path) -> None:
    reference = save_tiny_qwen3_vl(tmp_path)
    image = make_image(40, 30)

    embeddings = run_program(
        "vision_embed", "--model", "qwen3_vl", MODEL=str(tmp_path), IMAGE_URL=encode_image_url(image)
    )

    text = "the dog is in the city"
    states = [
        states_of(reference, tmp_path, text),
        states_of(reference, tmp_path, IMAGE, [image]),
        states_of(reference, tmp_path, f"{IMAGE}\n{text}", [image]),
    ]
    is_close(embeddings, torch.stack([normalize(rows[-1], dim=-1) for rows in states]))


def test_vision_reranking(tmp_path: Path) -> None:
    save_tiny_qwen3_vl(tmp_path)
    template = str(TEMPLATES / "qwen3_vl_reranker.jinja")

    single, together = run_program(
        "vision_rerank", MODEL=str(tmp_path), TEMPLATE=template, IMAGE_URL=encode_image_url(make_image(40, 30))
    )

    text, same_text, image, encoded_image, both = single
    is_close(together, single)
    is_close([text, image], [same_text, encoded_image])
    assert len({round(score, 3) for score in (text, image, both)}) == 3
    assert all(0 < score < 1 for score in single)


def test_score_with_a_template(tmp_path: Path) -> None:
    reference = save_reranker(tmp_path, "Qwen3ForCausalLM")
    kind = RERANKER_KINDS["Qwen3-Reranker-0.6B"]

    scores = run_program("score_template", "--model", str(tmp_path), TEMPLATE=TEMPLATES / "qwen3_reranker.jinja")

    is_close(scores, reference_scores(reference, tmp_path, kind))


def test_qwen3_reranker_with_texts_that_the_program_formats(tmp_path: Path) -> None:
    reference = save_reranker(tmp_path, "Qwen3ForCausalLM")
    kind = RERANKER_KINDS["Qwen3-Reranker-0.6B"]

    scores = run_program("qwen3_reranker", MODEL=str(tmp_path))

    is_close(scores, reference_scores(reference, tmp_path, kind))


def test_a_plugin_and_the_program_that_uses_it(tmp_path: Path, install_plugin: InstallPlugin) -> None:  # noqa: F811
    tiny_qwen3(tmp_path / "model")
    install_plugin("lengths", change_imports((PROGRAMS / "plugin_processor.py").read_text()))

    lengths = run_program("plugin", MODEL=str(tmp_path / "model"))

    assert lengths == [("a red bird", 3), ("the cat", 2)]


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_every_program_is_run_by_a_test(path: Path) -> None:
    sources = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))

    assert re.search(rf'["\']{path.stem}["\'.]', sources)
