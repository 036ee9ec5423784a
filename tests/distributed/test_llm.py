"""`LLM` with tensor_parallel_size: the same results as one process, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM, PoolingParams
from cenote.config.device import parse_device
from cenote.config.engine import EngineConfig
from cenote.distributed.parallel_model import resolve_devices
from cenote.errors import BadRequest, EngineStopped, LoadError
from cenote.layers.tensor_parallel import LAYER_RULES
from cenote.loading.tensor_parallel import REFUSALS
from tests.models.reward_models import outcome
from tests.serving.server_process import is_alive, wait_until
from tests.suite import first_of
from tests.tiny import SEQUENCES, TEXTS, save_tiny, tiny_bert, tiny_qwen3, tiny_splade

TOLERANCE = 1e-4


def open_llm(folder: Path, num_ranks: int, **options: Any) -> LLM:
    return LLM(str(folder), device="cpu", tensor_parallel_size=num_ranks, **{"dtype": "float32", **options})


def embed(llm: LLM) -> Tensor:
    return torch.tensor([output.outputs.embedding for output in llm.embed(TEXTS, use_tqdm=False)])


def reward(llm: LLM) -> Tensor:
    return torch.cat([output.outputs.data for output in llm.reward(SEQUENCES, use_tqdm=False)])


def sparse(llm: LLM) -> Tensor:
    return torch.stack([output.outputs.data for output in llm.encode(TEXTS, pooling_task="embed", use_tqdm=False)])


MODELS: dict[str, tuple[Callable[[Path], object], Callable[[LLM], Tensor], dict[str, Any]]] = {
    "bert": (tiny_bert, embed, {}),
    "modernbert": (lambda folder: save_tiny(folder, "ModernBertModel"), embed, {}),
    "qwen3": (tiny_qwen3, embed, {}),
    "gemma3": (lambda folder: save_tiny(folder, "Gemma3TextModel"), embed, {}),
    "mixture of experts": (lambda folder: save_tiny(folder, "Qwen3MoeModel"), embed, {}),
    "reward model": (outcome, reward, {}),
    "splade": (tiny_splade, sparse, {}),
    "deterministic": (tiny_bert, embed, {"deterministic": True}),
}


@pytest.mark.parametrize("name", first_of(MODELS, key="reward model".__eq__))
def test_two_processes_give_the_results_of_one(name: str, tmp_path: Path) -> None:
    save, compute, options = MODELS[name]
    save(tmp_path)
    with open_llm(tmp_path, 1, **options) as llm:
        expected = compute(llm)

    with open_llm(tmp_path, 2, **options) as llm:
        assert_close(compute(llm), expected, atol=TOLERANCE, rtol=0)
        pids = rank_pids(llm)
        assert len(pids) == 1

    assert not any(map(is_alive, pids))


@pytest.mark.slow
def test_inputs_of_every_kind_reach_all_ranks(tmp_path: Path) -> None:
    """Token types, shared prefixes and given embeddings."""
    save_tiny(tmp_path, "Qwen3ForSequenceClassification", num_labels=1)
    prefix = list(range(10, 34))
    prompts = [[*prefix, 40 + number] for number in range(6)]
    embeds = [{"prompt_embeds": torch.linspace(-1, 1, 5 * 32).view(5, 32)}]

    def compute(llm: LLM) -> Tensor:
        scores = [output.outputs.probs for output in llm.classify(prompts, use_tqdm=False)]
        scores += [output.outputs.probs for output in llm.classify(embeds, use_tqdm=False)]
        return torch.tensor(scores)

    options: dict[str, Any] = {"enable_prompt_embeds": True}
    with open_llm(tmp_path, 1, **options) as llm:
        expected = compute(llm)
    with open_llm(tmp_path, 2, **options) as llm:
        assert_close(compute(llm), expected, atol=TOLERANCE, rtol=0)
        assert llm.engine.core.loop.executor.prefix_sharing.num_saved_tokens > 0  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_threads_of_a_cpu_are_divided_and_given_back(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with open_llm(tmp_path, 2):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_killed_rank_fails_requests_and_the_next_ones(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with open_llm(tmp_path, 2) as llm:
        (pid,) = rank_pids(llm)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: llm.engine.dead_error is not None)

        with pytest.raises(EngineStopped, match=f"rank 1 of the model .process {pid}. exited with SIGKILL"):
            embed(llm)


@pytest.mark.slow
@pytest.mark.slow
def test_a_rank_killed_under_load_fails_the_call(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with open_llm(tmp_path, 2) as llm:
        (pid,) = rank_pids(llm)
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()

        with pytest.raises(EngineStopped, match="rank 1"):
            for _ in range(1000):
                llm.embed(SEQUENCES * 50, use_tqdm=False, pooling_params=PoolingParams())


@pytest.mark.slow
@pytest.mark.slow
def test_ranks_exit_with_a_program_that_is_killed(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    program = (
        "import os, signal; from cenote import LLM; "
        f"llm = LLM({str(tmp_path)!r}, device='cpu', dtype='float32', tensor_parallel_size=2); "
        "print(llm.engine.core.ranks.processes[0].pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )

    finished = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)

    assert finished.returncode == -signal.SIGKILL
    wait_until(lambda: not is_alive(int(finished.stdout)))


@pytest.mark.slow
def test_a_model_may_be_loaded_by_a_thread_that_ends(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    opened: list[LLM] = []
    thread = threading.Thread(target=lambda: opened.append(open_llm(tmp_path, 2)))
    thread.start()
    thread.join()

    with opened[0] as llm:
        assert embed(llm).shape == (len(TEXTS), 32)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"enable_lora": True}, "is not supported for LoRA adapters: .*merge the adapter"),
        ({"model_impl": "transformers"}, "is not supported for models on the Transformers backend"),
    ],
)
def test_models_that_are_not_split_are_refused_with_the_reason(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    tiny_bert(tmp_path)

    with pytest.raises(LoadError, match=f"tensor_parallel_size=2 {reason}"):
        open_llm(tmp_path, 2, **options)


def test_sizes_are_checked_before_processes_start(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    with pytest.raises(LoadError, match="tensor_parallel_size=3: .* attention heads 4 is not divisible by 3"):
        open_llm(tmp_path, 3)


def test_an_error_of_another_rank_while_it_loads_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_bert(tmp_path)
    monkeypatch.setattr("cenote.distributed.ranks.WORKER_MODULE", "cenote.no_such_module")

    with pytest.raises(LoadError, match="rank 1 of the model .* exited with status 1"):
        open_llm(tmp_path, 2)


def test_ranks_have_consecutive_gpus_or_the_given_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)

    def resolve(first: str, **options: Any) -> list[str]:
        return resolve_devices(EngineConfig.from_kwargs("m", **options), parse_device(first))

    assert resolve("cuda", tensor_parallel_size=2) == ["cuda:0", "cuda:1"]
    assert resolve("cuda:2", tensor_parallel_size=2) == ["cuda:2", "cuda:3"]
    assert resolve("cuda:3", tensor_parallel_size=2, devices="cuda:3,cuda:0") == ["cuda:3", "cuda:0"]
    with pytest.raises(LoadError, match="tensor_parallel_size=8 from cuda on needs 8 GPUs, but torch found 4"):
        resolve("cuda", tensor_parallel_size=8)
    with pytest.raises(LoadError, match="are of several kinds"):
        resolve("cuda", tensor_parallel_size=2, devices=("cuda:0", "cpu"))


def test_the_number_of_devices_must_match() -> None:
    with pytest.raises(BadRequest, match="devices has 2 names for tensor_parallel_size=4"):
        LLM("m", tensor_parallel_size=4, devices=["cuda:0", "cuda:1"])


def test_the_documentation_has_the_rules() -> None:
    rows = ["| part of a model | with several ranks |", "|---|---|"]
    rows += [f"| {rule.label} | {rule.treatment} |" for rule in LAYER_RULES if not rule.is_refused]
    rows += ["| SPLADE head | split by vocabulary |"]
    rows += ["| embeddings, norms, other heads | replicated, or on the first rank |"]
    refused = [(rule.label, rule.treatment) for rule in LAYER_RULES if rule.is_refused]
    refused += [(refusal.label, refusal.reason) for refusal in REFUSALS]
    rows += [f"| {label} | refused: {reason} |" for label, reason in refused]

    assert "\n".join(rows) in Path("docs/serving.md").read_text()


def rank_pids(llm: LLM) -> list[int]:
    assert llm.engine.core.ranks is not None
    return [process.pid for process in llm.engine.core.ranks.processes]
