"""Querit-4B, compared with Transformers' Qwen3 below its head, with the mask and padding of its authors' code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.testing import assert_close

from cenote import LLM
from cenote.errors import LoadError
from tests.layouts.builders.models_2026 import querit_4b

PAIRS = [("the cat", "a dog"), ("what is it", "a red bird, a blue fish"), ("who", "two people in the old city")]
INSTRUCTION = "Judge whether the Content meets the requirements based on the Query."


@pytest.mark.parametrize("instruction", [None, "search a good book."])
def test_pairs_are_scored_by_the_token_at_their_end(instruction: str | None, tmp_path: Path) -> None:
    querit_4b(tmp_path)
    model = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path).model.eval()
    tensors = load_file(tmp_path / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    pad, cls = 0, tokenizer.token_to_id("[CLS]")

    with LLM(str(tmp_path), dtype="float32") as llm:
        outputs = llm.score(*map(list, zip(*PAIRS, strict=True)), instruction=instruction, use_tqdm=False)

    texts = [f"{instruction or INSTRUCTION} Query: {query}; Content: {document}" for query, document in PAIRS]
    sequences = [[*tokenizer.encode(text, add_special_tokens=False).ids, cls] for text in texts]
    length = max(map(len, sequences)) + 3
    scores = []
    for ids, output in zip(sequences, outputs, strict=True):
        assert output.prompt_token_ids == ids
        kinds = torch.tensor([0] * (length - len(ids)) + [1] * (len(ids) - 1) + [2])
        mask = (kinds[:, None] == 1) & (kinds == 1) | (kinds[:, None] == 2) & (kinds != 0)
        added = torch.where(mask.tril(), 0.0, -1e9)[None, None]
        with torch.inference_mode():
            padded = torch.tensor([[pad] * (length - len(ids)) + ids])
            state = model(input_ids=padded, attention_mask=added).last_hidden_state[0, -1]
            irrelevant, relevant = (tensors["head.weight"] @ state + tensors["head.bias"]).softmax(0)
        scores.append(relevant - irrelevant)
        assert_close(torch.tensor(output.outputs.score), scores[-1], atol=1e-4, rtol=0)
    assert torch.stack(scores).std() > 0.05


def test_a_tokenizer_without_the_token_is_refused(tmp_path: Path) -> None:
    querit_4b(tmp_path)
    stored = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(stored.replace("[CLS]", "[OTHER]"))

    with pytest.raises(LoadError, match=r"the tokenizer has no token '\[CLS\]', which scores need"):
        LLM(str(tmp_path), dtype="float32")
