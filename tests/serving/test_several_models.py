"""Several models on one port: mixed load, loading and unloading, replacement under load, memory budget."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import openai
import pytest

from cenote import LLM
from tests.tiny import save_tiny, tiny_bert, tiny_bert_classifier, tiny_splade

from .model_load import Check, load_on
from .server_process import TIMEOUT_S, ServerProcess, children, command_line, wait_until

# FAULT_TESTS=full: as often as docs/several_models.md says
IS_FULL = os.environ.get("FAULT_TESTS") == "full"
pytestmark = pytest.mark.timeout(3600 if IS_FULL else 400)
TEXTS = ["the cat is in the city", "a red bird", "two big fish"]
PAIR: dict[str, Any] = {"query": "the city", "documents": ["people live in the old city", "a red bird"]}
EXACT = ("--dtype", "float32")
MEGABYTE = 1024**2


class Models:
    """Folders of tiny models, and what they answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("embedder", "other", "reranker", "splade"):
            (folder / name).mkdir()
        tiny_bert(folder / "embedder")
        save_tiny(folder / "other", "BertModel", seed=7)
        tiny_bert_classifier(folder / "reranker", num_labels=1)
        tiny_splade(folder / "splade")
        with LLM(str(folder / "embedder"), dtype="float32") as llm:
            self.vectors = [list(output.outputs.embedding) for output in llm.embed(TEXTS, use_tqdm=False)]
        with LLM(str(folder / "other"), dtype="float32") as llm:
            self.other_vectors = [list(output.outputs.embedding) for output in llm.embed(TEXTS, use_tqdm=False)]
        with LLM(str(folder / "reranker"), dtype="float32") as llm:
            scores = llm.score(PAIR["query"], PAIR["documents"], use_tqdm=False)
            self.scores = [output.outputs.score for output in scores]
        with LLM(str(folder / "splade"), dtype="float32") as llm:
            self.sparse = [len(output.outputs.token_ids) for output in llm.sparse_embed(TEXTS, use_tqdm=False)]

    def write_file(self, **extra: str) -> str:
        """Write the file of three models, each with further keys in YAML."""
        lines = [
            f"- {{name: {name}, source: {self.folder / name}{extra.get(name, '')}}}"
            for name in ("embedder", "reranker", "splade")
        ]
        file = self.folder / f"models{abs(hash(tuple(lines)))}.yaml"
        file.write_text("\n".join(lines))
        return str(file)

    def check_embedder(self, client: httpx.Client, model: str = "embedder") -> str:
        reply = client.post("/v1/embeddings", json={"input": TEXTS, "model": model})
        if reply.status_code != 200:
            return reply.text
        vectors = [item["embedding"] for item in reply.json()["data"]]
        return "" if is_close(vectors, self.vectors) else "a wrong vector"

    def check_reranker(self, client: httpx.Client) -> str:
        reply = client.post("/rerank", json={**PAIR, "model": "reranker"})
        if reply.status_code != 200:
            return reply.text
        by_index = {item["index"]: item["relevance_score"] for item in reply.json()["results"]}
        return "" if is_close([by_index[0], by_index[1]], self.scores) else "a wrong score"

    def check_splade(self, client: httpx.Client) -> str:
        reply = client.post("/pooling", json={"input": TEXTS, "task": "sparse_embed", "model": "splade"})
        if reply.status_code != 200:
            return reply.text
        counts = [len(item["data"]["token_ids"]) for item in reply.json()["data"]]
        return "" if counts == self.sparse else "a wrong sparse vector"

    @property
    def checks(self) -> dict[str, Check]:
        return {"embedder": self.check_embedder, "reranker": self.check_reranker, "splade": self.check_splade}


def is_close(one: Any, other: Any) -> bool:
    return bool(np.allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("several"))


Start = Callable[..., ServerProcess]


@contextmanager
def starting() -> Iterator[Start]:
    running: list[ServerProcess] = []

    def start(*flags: str) -> ServerProcess:
        running.append(ServerProcess(*flags, *EXACT, "--allow-local-admin"))
        return running[-1]

    yield start
    for server in running:
        server.process.kill()
        server.wait()


@pytest.fixture
def start() -> Iterator[Start]:
    with starting() as start:
        yield start


@pytest.fixture(scope="module")
def three(models: Models) -> Iterator[ServerProcess]:
    """A server with three models; each test leaves them as they were."""
    with starting() as start:
        yield start("--models", models.write_file(), "--api-server-count", "2").wait_until_ready()


def admin(client: httpx.Client, action: str, **body: Any) -> dict[str, Any]:
    reply = client.post(f"/admin/models/{action}", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def list_models(client: httpx.Client) -> dict[str, dict[str, Any]]:
    reply = client.get("/admin/models")
    assert reply.status_code == 200, reply.text
    return {row["name"]: row for row in reply.json()["models"]}


def engine_pids(server: ServerProcess) -> list[int]:
    return [pid for pid in children(server.process.pid) if "cenote.api.engine_process" in command_line(pid)]


def measure_memory(server: ServerProcess) -> int:
    """Return the resident bytes of the supervisor and of all front-ends."""
    pids = [server.process.pid, *(pid for pid in children(server.process.pid) if pid not in engine_pids(server))]
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)


def read_model_metric(client: httpx.Client, name: str) -> dict[str, float]:
    """Return the values of a metric by model."""
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"{name}{{model_name=")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


def test_three_models_answer_the_openai_and_cohere_clients_at_the_same_time(
    three: ServerProcess, models: Models
) -> None:
    http = httpx.Client(timeout=TIMEOUT_S)
    openai_client = openai.OpenAI(base_url=f"{three.address}/v1", api_key="none", max_retries=0)
    cohere_client = cohere.ClientV2(api_key="none", base_url=three.address, httpx_client=http)

    def check_openai(client: httpx.Client) -> str:
        reply = openai_client.embeddings.create(model="embedder", input=TEXTS)
        is_right = reply.model == "embedder" and is_close([item.embedding for item in reply.data], models.vectors)
        return "" if is_right else "a wrong vector"

    def check_cohere(client: httpx.Client) -> str:
        reply = cohere_client.rerank(model="reranker", **PAIR)
        by_index = {item.index: item.relevance_score for item in reply.results}
        return "" if is_close([by_index[0], by_index[1]], models.scores) else "a wrong score"

    with load_on(three, {"openai": check_openai, "cohere": check_cohere, "splade": models.check_splade}) as load:
        load.wait_for_answers(1000 if IS_FULL else 30)

    openai_client.close()
    http.close()
    with three.client() as client:
        tokens = read_model_metric(client, "cenote_prompt_tokens_total")
        assert tokens.keys() == {"embedder", "reranker", "splade"} and all(tokens.values())
        rows = list_models(client)
        assert [row["state"] for row in rows.values()] == ["ready"] * 3
        assert rows["embedder"]["max_model_len"] and rows["embedder"]["memory_bytes"] > 50 * MEGABYTE
        assert client.get("/health/ready").status_code == 200


def test_a_model_is_unloaded_and_loaded_again_while_the_others_serve(three: ServerProcess, models: Models) -> None:
    count = 50 if IS_FULL else 3
    with (
        three.client() as client,
        load_on(three, {"embedder": models.check_embedder, "reranker": models.check_reranker}) as load,
    ):
        admin(client, "unload", name="splade")
        load.wait_for_answers(20)
        before, num_engines = measure_memory(three), len(engine_pids(three))
        for _ in range(count):
            assert admin(client, "load", name="splade")["state"] == "ready"
            assert models.check_splade(client) == ""
            assert admin(client, "unload", name="splade")["state"] == "unloaded"
        assert len(engine_pids(three)) == num_engines == 2
        load.wait_for_answers(20)
        assert measure_memory(three) - before < 50 * MEGABYTE
        assert list_models(client)["splade"]["memory_bytes"] is None
        admin(client, "load", name="splade")


def test_a_request_for_an_unloaded_model_waits_until_it_is_loaded(models: Models, start: Start) -> None:
    server = start("--models", models.write_file(splade=", load: demand")).wait_until_ready()
    with server.client() as client:
        assert len(engine_pids(server)) == 2
        assert list_models(client)["splade"]["state"] == "unloaded"
        assert client.get("/health/ready").status_code == 200
        assert models.check_splade(client) == ""
        assert list_models(client)["splade"]["state"] == "ready"

        admin(client, "unload", name="splade")
        body = {"input": TEXTS, "task": "sparse_embed", "model": "splade", "timeout": 0.01}
        assert client.post("/pooling", json=body).status_code in (503, 504)
        assert models.check_splade(client) == ""


def test_another_checkpoint_takes_over_without_a_failed_request(three: ServerProcess, models: Models) -> None:
    sources = [models.folder / "other", models.folder / "embedder"]
    known = [models.vectors, models.other_vectors]
    seen: set[int] = set()

    def check(client: httpx.Client) -> str:
        reply = client.post("/v1/embeddings", json={"input": TEXTS, "model": "embedder"})
        if reply.status_code != 200:
            return reply.text
        vectors = [item["embedding"] for item in reply.json()["data"]]
        matches = [index for index, expected in enumerate(known) if is_close(vectors, expected)]
        seen.update(matches)
        return "" if len(matches) == 1 else f"the vectors are those of {len(matches)} checkpoints"

    with three.client() as client, load_on(three, {"a": check, "b": check, "c": models.check_reranker}) as load:
        old = engine_pids(three)
        for number in range(10 if IS_FULL else 2):
            source = str(sources[number % 2])
            row = admin(client, "reload", name="embedder", source=source)
            assert (row["state"], row["source"]) == ("ready", source)
            load.wait_for_answers(5)
        assert len(engine_pids(three)) == 3 and len(set(engine_pids(three)) & set(old)) == 2
    assert seen == {0, 1}


def test_a_checkpoint_that_cannot_be_loaded_leaves_the_model_as_it_was(three: ServerProcess, models: Models) -> None:
    with three.client() as client, load_on(three, {"embedder": models.check_embedder}) as load:
        load.wait_for_answers(3)
        reply = client.post("/admin/models/reload", json={"name": "embedder", "source": str(models.folder)})
        assert reply.status_code == 400 and "is not a model folder" in reply.text
        load.wait_for_answers(3)
        assert list_models(client)["embedder"]["state"] == "ready" and len(engine_pids(three)) == 3


def test_a_model_can_be_added_at_run_time(three: ServerProcess, models: Models) -> None:
    with three.client() as client:
        source = str(models.folder / "embedder")
        row = admin(client, "load", name="new", source=source, aliases=["newer"], options={"dtype": "float32"})
        assert (row["state"], row["aliases"]) == ("ready", ["newer"])
        assert len(engine_pids(three)) == 3  # shared with the other model of this source and dtype
        for name in ("new", "newer"):
            wait_until(lambda name=name: models.check_embedder(client, name) == "")  # type: ignore[misc]
        admin(client, "unload", name="new")
        assert models.check_embedder(client) == ""

        reply = client.post("/admin/models/load", json={"name": "x", "source": source, "aliases": ["reranker"]})
        assert reply.status_code == 400 and "the name 'reranker' is given to" in reply.text
        assert client.post("/admin/models/load", json={"name": "nobody"}).status_code == 404


@pytest.mark.slow
def test_models_take_turns_within_the_memory_budget(models: Models, start: Start) -> None:
    server = start("--models", models.write_file()).wait_until_ready()
    with server.client() as client:
        sizes = [row["memory_bytes"] for row in list_models(client).values()]
    assert server.stop() == 0
    # for two, of which the first is larger since it is no fork of the launcher, and which grow when they compute
    budget = round(2.7 * min(sizes))

    server = start("--models", models.write_file(), "--memory-budget", str(budget)).wait_until_ready()
    with server.client() as client:
        for _ in range(10 if IS_FULL else 2):
            for name, check in models.checks.items():
                assert check(client) == "", name
                assert sum(row["memory_bytes"] or 0 for row in list_models(client).values()) <= budget
                assert len(engine_pids(server)) <= 2
        assert "to make room for" in server.output
        reply = client.get("/health/ready")
        assert reply.status_code == 200, reply.text


def test_a_model_that_alone_exceeds_the_budget_is_refused_with_the_numbers(models: Models, start: Start) -> None:
    file = models.write_file(embedder=", load: demand", reranker=", load: demand", splade=", load: demand")
    server = start("--models", file, "--memory-budget", "32M").wait_until_ready()
    with server.client() as client:
        began_at = time.monotonic()
        problem = models.check_embedder(client)
        assert "the model embedder needs about 0.06 GiB, --memory-budget is 0.03 GiB" in problem
        assert time.monotonic() - began_at < 10  # nothing is waited for


@pytest.mark.slow
def test_an_idle_model_is_unloaded_after_its_time(models: Models, start: Start) -> None:
    server = start("--models", models.write_file(splade=", keep_alive_s: 0.5")).wait_until_ready()
    with server.client() as client:
        wait_until(lambda: list_models(client)["splade"]["state"] == "unloaded")
        assert "unloading the model splade: no request for" in server.output
        assert models.check_splade(client) == ""
        assert models.check_embedder(client) == ""


def test_a_model_that_fails_at_the_start_is_named_and_the_others_serve(models: Models, start: Start) -> None:
    broken = models.folder / "broken"
    broken.mkdir()
    file = models.folder / "broken.yaml"
    file.write_text(
        f"- {{name: embedder, source: {models.folder / 'embedder'}}}\n- {{name: broken, source: {broken}}}\n"
    )
    server = start("--models", str(file)).wait_until_ready()
    with server.client() as client:
        assert models.check_embedder(client) == ""
        reply = client.get("/health/ready")
        assert reply.status_code == 503 and "1 of 2 models do not answer: broken (failed)" in reply.text
        assert client.get("/health/live").status_code == 200
        assert list_models(client)["broken"]["state"] == "failed"
        assert "is not a model folder" in list_models(client)["broken"]["error"]
        assert client.post("/v1/embeddings", json={"input": "a", "model": "broken"}).status_code == 503


def test_admin_routes_need_the_admin_key(models: Models, start: Start) -> None:
    server = start(
        str(models.folder / "embedder"), "--api-key", "plain", "--admin-api-key", "boss", "--api-server-count", "2"
    ).wait_until_ready()
    with server.client() as client:
        statuses = {
            key: client.get("/admin/models", headers={"Authorization": f"Bearer {key}"}).status_code
            for key in ("plain", "boss", "nobody")
        }
        assert statuses == {"plain": 403, "boss": 200, "nobody": 401}
        assert client.post("/admin/shutdown", headers={"Authorization": "Bearer plain"}).status_code == 403
        assert client.post("/admin/shutdown", headers={"Authorization": "Bearer boss"}).status_code == 202
    assert server.wait() == 0


def test_a_killed_engine_is_replaced_while_the_other_models_serve(three: ServerProcess, models: Models) -> None:
    with three.client() as client:
        assert models.check_splade(client) == ""
    with load_on(three, models.checks) as load:
        for _ in range(3):
            load.wait_for_answers(5)
            os.kill(engine_pids(three)[0], 9)
            load.wait_for_answers(5)
