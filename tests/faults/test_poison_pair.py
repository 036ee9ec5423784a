"""A pair that crashes the engine process fails alone: the other documents are ranked."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from lab.chaos.hook_folder import HookFolder
from tests.serving.server_process import ServerProcess, read_metrics
from tests.tiny import tiny_bert_classifier

DOCUMENTS = ["a red bird", "people live in the city", "the river is big", "two birds"]


def test_a_poison_document_of_rerank_is_named_and_the_others_are_ranked(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_bert_classifier(folder, num_labels=1)
    poison = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(DOCUMENTS[2], add_special_tokens=False).ids
    hooks = HookFolder(tmp_path / "hooks", poison)
    server = ServerProcess(str(folder), "--dtype", "float32", **hooks.environment)
    try:
        with server.wait_until_ready().client() as client:

            def rerank(*documents: str) -> dict[str, object]:
                reply = client.post("/rerank", json={"query": "what is red?", "documents": documents})
                return {"status": reply.status_code, **reply.json()}

            refused = rerank(*DOCUMENTS)
            others = rerank(*DOCUMENTS[:2], DOCUMENTS[3])
            again = rerank(DOCUMENTS[3], DOCUMENTS[2])
            restarts = read_metrics(client)["cenote_engine_restarts_total"]
    finally:
        server.stop()
    assert_poison(refused, 2)
    assert others["status"] == 200 and len(others["results"]) == 3  # type: ignore[arg-type]
    assert_poison(again, 1)  # refused at once
    assert restarts == 2


def assert_poison(reply: dict[str, object], index: int) -> None:
    error = reply["error"]
    assert isinstance(error, dict)
    assert (reply["status"], error["code"], error["index"]) == (500, "input_crashed_engine", index)
    assert error["message"].startswith(f"input {index} crashed the engine process")
