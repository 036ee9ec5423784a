"""The command `cenote bench compare`, with stub engines and with Cenote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from cenote import LLM
from cenote.bench.compare import engines as table
from cenote.bench.compare.engines import PeerEngine, select_engines
from cenote.bench.compare.http import ServerWorker, make_server_command
from cenote.bench.compare.images import write_clip
from cenote.bench.compare.models import ComparedModel, prepare_model
from cenote.bench.compare.rounds import RunningEngine, measure_rounds
from cenote.bench.compare.worker import WorkerFailed, WorkerProcess
from cenote.bench.compare.workload_specs import (
    WORKLOADS,
    PreparedWorkload,
    WorkloadSpec,
    prepare_image_workload,
    prepare_workload,
    select_workloads,
)
from cenote.bench.main import main
from cenote.bench.peers.run_cenote import Engine as CenoteEngine
from cenote.bench.peers.worker import decode_inputs
from cenote.bench.spawn import find_free_port
from cenote.errors import BadRequest
from cenote.loading.default_model import find_default_model
from tests.bench.stub import vector

STUB = str(Path(__file__).with_name("stub_engine.py"))


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(f"{find_default_model()}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def make_stub_engine(name: str, tasks: tuple[str, ...] = table.ALL_TASKS, **settings: Any) -> PeerEngine:
    return PeerEngine(name, name, STUB, None, settings, tasks)


@pytest.fixture
def folder(default_folder: Path, tmp_path: Path) -> str:
    """Return a folder with the tokenizer and config that stub engines need."""
    made = tmp_path / "a-model"
    made.mkdir()
    (made / "tokenizer.json").symlink_to(default_folder / "tokenizer.json")
    (made / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 100}))
    return str(made)


def test_every_engine_runs_every_round_and_failed_engines_are_listed_as_left_out(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [
        make_stub_engine("cenote"),
        make_stub_engine("st-float32", delay=0.05),
        make_stub_engine("tilted", offset=50.0, refuses="score"),
        make_stub_engine("broken", ("score",), fails=True),
        PeerEngine("absent", "absent", STUB, "vllm"),
    ]
    monkeypatch.setattr(table, "ENGINES", {engine.name: engine for engine in engines})
    files = ["--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.svg"), "--peers-dir", str(tmp_path)]
    models = ["--model", folder, "--reranker", folder]

    status = main(["compare", "--workloads", "short,rerank", "--rounds", "2", "--texts", "20", *models, *files])

    assert status == 0
    saved = json.loads((tmp_path / "f.json").read_text())
    rows = {work["workload"]: {row["engine"]: row for row in work["engines"]} for work in saved["workloads"]}
    assert {name: list(engines) for name, engines in rows.items()} == {
        "short": ["cenote", "st-float32", "tilted"],
        "rerank": ["cenote", "st-float32"],
    }
    assert all(len(row["seconds"]) == 2 for work in rows.values() for row in work.values())
    assert rows["short"]["st-float32"]["cenote_is_faster"]["median"] > 1
    assert rows["short"]["cenote"]["agreement"] == pytest.approx(1) and rows["short"]["tilted"]["agreement"] < 0.9999
    assert rows["short"]["tilted"]["settings"]["max_tokens"] == 100
    left_out = " ".join(saved["left_out"])
    assert "absent: not installed; `cenote bench peers install vllm" in left_out
    assert "broken on score: broken: RuntimeError: cannot read" in left_out and "tilted on rerank" in left_out
    shown = capsys.readouterr()
    assert "round 2 of 2, rerank" in shown.err and "for 2 rounds" in shown.err
    assert "short: short texts" in shown.out and "left out: absent" in shown.out
    assert (tmp_path / "f.svg").read_text().startswith("<svg")


def test_every_second_round_runs_in_reverse_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run(self: WorkerProcess, name: str, task: str, *, is_single_query: bool) -> list[float]:
        order.append(self.name)
        return [1.0]

    monkeypatch.setattr(WorkerProcess, "run", run)
    workers = [WorkerProcess.from_script(name, Path(sys.executable), STUB) for name in ("cenote", "other")]
    try:
        engines = [
            RunningEngine(make_stub_engine(worker.name), worker, worker.load("m", "embed", {})) for worker in workers
        ]
        work = PreparedWorkload(WORKLOADS["short"], ["some", "texts"], 2, 8, "two texts")
        measure_rounds(engines, [work], "a model", rounds=2, left_out=[])
    finally:
        for worker in workers:
            worker.terminate()

    warm_up, rounds = order[:2], order[2:]
    assert warm_up == ["cenote", "other"]
    assert rounds == ["cenote", "other", "other", "cenote"]


def test_the_cenote_engine_implements_the_worker_interface(default_folder: Path, llm: LLM) -> None:
    engine = CenoteEngine(str(default_folder), "embed", {"dtype": "float32", "max_tokens": 64, "batch_size": 32})
    texts = ["hello world", "a " * 100]
    try:
        vectors = engine.to_rows("embed", engine.run("embed", texts))
        tokens = engine.to_rows("token_embed", engine.run("token_embed", texts))
    finally:
        engine.llm.close()

    (expected,) = llm.embed(["hello world"], use_tqdm=False)
    assert vectors[0] == pytest.approx(expected.outputs.data.numpy(), abs=1e-5)
    assert [rows.shape for rows in tokens] == [(4, 384), (64, 384)]
    assert engine.settings["dtype"] == "float32" and engine.settings["threads"] >= 1


def test_servers_are_started_with_the_same_model_and_limit() -> None:
    model = ComparedModel(Path("/models/mini"), "mini", "embed")

    ours = make_server_command(table.ENGINES["cenote-int8"], Path(sys.executable), model, 81, 128)
    theirs = make_server_command(table.ENGINES["vllm"], Path("/peers/vllm/bin/python"), model, 82, 128)

    assert ours[:5] == [sys.executable, "-m", "cenote", "serve", "/models/mini"] and "--quantization=int8" in ours
    assert theirs[:2] == ["/peers/vllm/bin/python", "-m"] and "/models/mini" in theirs
    for command, port in ((ours, "81"), (theirs, "82")):
        assert command[command.index("--max-model-len") + 1] == "128" and command[command.index("--port") + 1] == port


SERVER = """
import sys, time
from tests.bench.stub import StubServer, embed, reply
async def handle(request):
    if request.method == "GET":
        return reply({})
    return reply({"error": "no such text"}, 500) if "fail" in request.body["input"] else await embed(request)
with StubServer(handle, port=int(sys.argv[1])):
    time.sleep(60)
"""


def test_a_server_is_measured_as_other_engines_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    port = find_free_port()
    worker = ServerWorker(make_stub_engine("served"), [sys.executable, "-c", SERVER, str(port)], port)
    try:
        worker.prepare("http", ["a text"] * 40)
        vectors, (seconds,) = worker.outputs("http", "embed", 32), worker.run("http", "embed", is_single_query=False)
        worker.prepare("http", ["fail"])
        with pytest.raises(WorkerFailed, match="^requests failed: no such text$"):
            worker.run("http", "embed", is_single_query=False)
    finally:
        worker.terminate()

    assert [row.tolist() for row in vectors] == [vector("a text").tolist()] * 32
    assert seconds > 0 and worker.server.group.process.returncode is not None


def test_a_generated_classifier_has_the_weights_of_the_model_and_a_random_head(
    default_folder: Path, tmp_path: Path
) -> None:
    reranker, tagger = prepare_model("score", None, tmp_path), prepare_model("token_classify", None, tmp_path)

    with LLM(str(reranker.folder), dtype="float32") as scores, LLM(str(tagger.folder), dtype="float32") as tags:
        (score,) = scores.score("a", "b", use_tqdm=False)
        (rows,) = tags.encode(["hello world"], pooling_task="token_classify", use_tqdm=False)

    assert 0 < score.outputs.score < 1
    assert rows.outputs.data.shape == (4, 9)
    assert "random head" in reranker.title and prepare_model("embed", None, tmp_path).folder == default_folder


def test_texts_have_the_lengths_of_their_workload(tokenizer: tokenizers.Tokenizer) -> None:
    def mean(kind: WorkloadSpec, limit: int = 512) -> float:
        made = prepare_workload(kind, tokenizer, max_tokens=limit, texts=100, quick=False, seed=1)
        return made.num_tokens / made.num_items

    assert 14 <= mean(WORKLOADS["short"]) <= 18
    assert 40 <= mean(WORKLOADS["mixed"]) <= 60
    assert 185 <= mean(WORKLOADS["passages"]) <= 215
    assert mean(WORKLOADS["long"], 64) == 64


def test_the_number_of_passages_per_query_is_fixed(tokenizer: tokenizers.Tokenizer) -> None:
    made = prepare_workload(WORKLOADS["rerank"], tokenizer, max_tokens=512, texts=7, quick=True, seed=0)

    assert made.num_items == len(made.inputs["documents"]) == 100
    assert made.num_tokens > 100 * 90


def test_unknown_names_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(BadRequest, match="'tei'; expected one of: cenote, "):
        select_engines(["tei"])
    with pytest.raises(BadRequest, match="'medium'; expected one of: short, mixed"):
        select_workloads(["medium"])
    assert [engine.name for engine in select_engines(["vllm"])] == ["cenote", "vllm"]
    assert [kind.name for kind in select_workloads(["query", "short"])] == ["short", "query"]
    assert len(select_workloads(["all"])) == len(WORKLOADS)


def test_a_generated_clip_embeds_generated_images(default_folder: Path, tmp_path: Path) -> None:
    vision_sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    write_clip(tmp_path / "clip", default_folder / "tokenizer.json", vision_sizes)
    made = prepare_image_workload(WORKLOADS["images"], tmp_path / "drawn", texts=5, quick=False, seed=0)
    engine = CenoteEngine(str(tmp_path / "clip"), "embed_images", {"dtype": "float32", "max_tokens": 77})
    try:
        images = decode_inputs(made.inputs)
        vectors = engine.to_rows("embed_images", engine.run("embed_images", images))
    finally:
        engine.llm.close()

    assert [image.size for image in images] == [(640, 480), (480, 640), (500, 333), (1024, 768), (640, 480)]
    assert [vector.shape for vector in vectors] == [(512,)] * 5
    assert len({vector.tobytes() for vector in vectors}) == 5
    assert ComparedModel(tmp_path / "clip", "clip", "embed_images").max_tokens(None) == 77
