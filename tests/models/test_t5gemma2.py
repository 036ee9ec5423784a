"""T5Gemma 2 as a reranker (KaLM-Reranker-V1) and as an embedder, compared with Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.testing import assert_close
from transformers import T5Gemma2ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.errors import BadRequest, InputTooLong, LoadError, Unsupported
from cenote.loading.describe import describe_model
from tests.api.app_client import make_client
from tests.layouts.builders.encoder_decoders import kalm_reranker_v1, save_t5gemma2
from tests.layouts.builders.st_formats import write_json
from tests.tiny import change_config

TOLERANCE = 1e-4
QUERIES = ["what is the query about", "How deep is the water? " * 3, "yes", "中文 🐈"]
DOCUMENTS = [
    "the cat sat on the mat",
    "Paris: capital of France, 2024! " * 5,
    "a",
    "ends an image <end_of_image> and has <bos> in it, no matter where",
]
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a query, retrieve documents that answer the query."


def encode_pair(
    tokenizer: Tokenizer, query: str, document: str, instruction: str = INSTRUCTION, system: str = SYSTEM
) -> tuple[list[int], list[int]]:
    """Return the ids for encoder and decoder, in the format of the model card."""
    prompt = (
        f"<bos><start_of_turn>user\n{system}\n\n<Instruct>: {instruction}\n<Query>: {query}<end_of_turn>\n"
        "<start_of_turn>model\n\n\n\n"
    )
    texts = (f"<Document>: {document}", prompt)
    encoder_ids, decoder_ids = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    return encoder_ids, decoder_ids


def compute_score(
    model: T5Gemma2ForConditionalGeneration, ids: tuple[list[int], list[int]], labels: list[int], size: int | None
) -> torch.Tensor:
    """Return the probability of `yes`, with the means of each `size` states of the encoder."""
    encoder_ids, decoder_ids = (torch.tensor([part]) for part in ids)
    with torch.inference_mode():
        states = model.get_encoder()(input_ids=encoder_ids).last_hidden_state
        if size is not None:
            states = torch.stack([chunk.mean(1) for chunk in states.split(size, dim=1)], dim=1)
        outputs = model(encoder_outputs=BaseModelOutput(last_hidden_state=states), decoder_input_ids=decoder_ids)
    return outputs.logits[0, -1, labels].softmax(0)[1]


def check_scores(folder: Path, size: int | None, **options: Any) -> None:
    model = T5Gemma2ForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    labels = [tokenizer.encode(answer, add_special_tokens=False).ids[-1] for answer in ("no", "yes")]

    with LLM(str(folder), dtype="float32", **options) as llm:
        outputs = llm.score(QUERIES, DOCUMENTS, use_tqdm=False)

    scores = []
    for query, document, output in zip(QUERIES, DOCUMENTS, outputs, strict=True):
        ids = encode_pair(tokenizer, query, document)
        assert output.prompt_token_ids == ids[0] + ids[1]
        scores.append(compute_score(model, ids, labels, size))
        assert_close(torch.tensor(output.outputs.score), scores[-1], atol=TOLERANCE, rtol=0)
    assert torch.stack(scores).std() > 0.02, "scores depend on the texts"


# windows that are shorter and longer than the decoder's input; fewer and more layers than the encoder
@pytest.mark.parametrize(
    "changes", [{}, {"sliding_window": 1024}, {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}]
)
@pytest.mark.parametrize("size", [4, None, 3])
def test_scores_are_those_of_transformers(changes: dict[str, Any], size: int | None, tmp_path: Path) -> None:
    save_t5gemma2(tmp_path, chunk_size=size, **changes)

    check_scores(tmp_path, size)


def test_the_published_files_load_with_either_format_of_names(tmp_path: Path) -> None:
    kalm_reranker_v1(tmp_path)
    check_scores(tmp_path, 4)
    tensors = load_file(tmp_path / "model.safetensors")
    parts = ("embed_tokens.", "layers.", "norm.")
    renamed = {
        name.replace("encoder.", "encoder.text_model.", 1)
        if name.removeprefix("model.encoder.").startswith(parts)
        else name: tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})

    check_scores(tmp_path, 4)


def test_the_chunk_size_and_lengths_can_be_overridden(tmp_path: Path) -> None:
    kalm_reranker_v1(tmp_path)

    check_scores(tmp_path, None, hf_overrides={"encoder_chunk_size": None})
    check_scores(tmp_path, 8, hf_overrides={"encoder_chunk_size": 8, "document_max_length": 2048})


def test_long_documents_and_queries_are_cut_as_in_the_published_code(tmp_path: Path) -> None:
    kalm_reranker_v1(tmp_path)
    change_config(tmp_path, file="kalm_cross_encoder_config.json", query_max_length=3, document_max_length=12)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    query = "the cat sat on the mat"
    cut = tokenizer.decode(tokenizer.encode(query, add_special_tokens=False).ids[:3])
    encoder_ids, decoder_ids = encode_pair(tokenizer, cut, "deep water " * 50)

    with LLM(str(tmp_path), dtype="float32") as llm:
        (output,) = llm.score(query, "deep water " * 50, use_tqdm=False)
        limits = [{"truncate_prompt_tokens": len(decoder_ids) + room} for room in (5, 0)]
        (shorter,) = llm.score(query, "deep water", tokenization_kwargs=limits[0], use_tqdm=False)
        with pytest.raises(InputTooLong, match="leaves no room for the document"):
            llm.score(query, "deep water", tokenization_kwargs=limits[1], use_tqdm=False)

    assert query.startswith(cut) and cut != query
    assert output.prompt_token_ids == encoder_ids[:12] + decoder_ids
    assert shorter.prompt_token_ids == encoder_ids[:5] + decoder_ids


def test_instructions_come_from_the_request_else_from_the_files(tmp_path: Path) -> None:
    kalm_reranker_v1(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    change_config(tmp_path, file="kalm_cross_encoder_config.json", system_instruction="the system")
    prompts = {"prompts": {"web": "what is on the web"}, "default_prompt_name": "web"}
    change_config(tmp_path, file="config_sentence_transformers.json", **prompts)

    with LLM(str(tmp_path), dtype="float32") as llm:
        (default,) = llm.score("yes", "no", use_tqdm=False)
        (asked,) = llm.score("yes", "no", instruction="search", use_tqdm=False)

    for output, instruction in ((default, "what is on the web"), (asked, "search")):
        encoder_ids, decoder_ids = encode_pair(tokenizer, "yes", "no", instruction, "the system")
        assert output.prompt_token_ids == encoder_ids + decoder_ids


def test_rerank_sorts_documents_by_their_probability(tmp_path: Path) -> None:
    kalm_reranker_v1(tmp_path)
    model = T5Gemma2ForConditionalGeneration.from_pretrained(tmp_path).eval()
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    labels = [tokenizer.token_to_id(answer) for answer in ("no", "yes")]
    scores = [compute_score(model, encode_pair(tokenizer, QUERIES[0], text), labels, 4).item() for text in DOCUMENTS]

    with LLM(str(tmp_path), dtype="float32") as llm, make_client(llm) as client:
        reply = client.post("/rerank", json={"query": QUERIES[0], "documents": DOCUMENTS})

    results = reply.json()["results"]
    assert [row["index"] for row in results] == sorted(range(len(scores)), key=lambda row: -scores[row])
    for row in results:
        assert row["relevance_score"] == pytest.approx(scores[row["index"]], abs=TOLERANCE)


def test_texts_without_a_query_are_refused(tmp_path: Path) -> None:
    kalm_reranker_v1(tmp_path)

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert "classify" in llm.supported_tasks and "token_classify" not in llm.supported_tasks
        for prompts in ("a text", ["one", "two"], [{"prompt_token_ids": [5, 6]}]):
            with pytest.raises(Unsupported, match="send both to score or rerank"):
                llm.classify(prompts, use_tqdm=False)
        with pytest.raises(BadRequest, match="must contain the document once"):
            llm.score("a", "b", chat_template="{{ messages[0]['content'] }}", use_tqdm=False)


def test_the_encoder_embeds(tmp_path: Path) -> None:
    model = save_t5gemma2(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    with LLM(str(tmp_path), dtype="float32", convert="embed") as llm:
        outputs = llm.embed(DOCUMENTS, use_tqdm=False)

    for text, output in zip(DOCUMENTS, outputs, strict=True):
        with torch.inference_mode():
            states = model.get_encoder()(input_ids=torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(states.mean(0), dim=0)
        assert_close(torch.tensor(output.outputs.embedding), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings False is not supported"),
        ("kalm_cross_encoder_config.json", {"encoder_chunk_size": 0}, "encoder_chunk_size is 0; expected a number"),
        ("kalm_cross_encoder_config.json", {"query_max_length": None}, "query_max_length is None"),
    ],
)
def test_settings_that_change_scores_are_refused(file: str, changes: Any, message: str, tmp_path: Path) -> None:
    kalm_reranker_v1(tmp_path)
    change_config(tmp_path, file=file, **changes)

    with pytest.raises(LoadError, match=message) as caught:
        describe_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu"))

    assert str(caught.value).startswith(str(tmp_path / file)) and "\n" not in str(caught.value)


def test_a_limit_of_the_logits_is_refused(tmp_path: Path) -> None:
    save_t5gemma2(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["decoder"]["final_logit_softcapping"] = 30.0
    write_json(tmp_path / "config.json", config)

    with pytest.raises(LoadError, match=r"config.json: decoder: final_logit_softcapping 30.0 is not supported"):
        describe_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu"))


def test_a_reranker_with_an_unknown_prompt_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "my-reranker"
    folder.mkdir()
    save_t5gemma2(folder)
    (folder / "kalm_cross_encoder_config.json").unlink()

    with pytest.raises(LoadError, match="the prompt of this reranker is not known"):
        describe_model(EngineConfig.from_kwargs(str(folder), device="cpu"))

    check_scores(folder, 4, score_template="kalm_reranker_v1")
