"""Small pieces of work use few threads, which live on and free their memory when they end."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from cenote.kernels.cpu import threads
from cenote.kernels.cpu.threads import (
    MIN_WORK_OF_ENCODER,
    MIN_WORK_OF_LINEAR,
    count_threads,
    count_workers,
)

# a model of the shape of MiniLM-L6, short and long batches
MODEL = """
import os, re, sys, threading
import torch
from cenote.kernels.cpu.library import load_level
from cenote.layers.matmul_format import prepare_matmuls
from dataclasses import replace
from tests.kernels.backbones import SPEC, batch_of, make_backbone

if load_level() is None:
    sys.exit(5)
torch.set_num_threads(6)
backbone = make_backbone(replace(SPEC, hidden_size=384, num_heads=12, intermediate_size=1536, num_layers=2))
prepare_matmuls(backbone, backbone, torch.device("cpu"), None, torch.float32, None)
assert backbone.fused_encoder is not None
short, long = batch_of([5]), batch_of([100] * 8)
"""
COUNT_THREADS = """
seen = set()
for number in range(30):
    backbone(short), backbone(long)
    if number > 1:
        seen |= set(os.listdir("/proc/self/task"))
print(len(seen - set(os.listdir("/proc/self/task"))))
"""
MEASURE_GROWTH = """
def rss():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) >> 10

def run_in_threads(count):
    for _ in range(count):
        thread = threading.Thread(target=lambda: backbone(long))
        thread.start()
        thread.join()

run_in_threads(10)
before = rss()
run_in_threads(30)
print(rss() - before)
"""
MINILM = 10_616_832  # multiply-adds for a token


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch, use_all_threads: None) -> None:
    monkeypatch.setattr(threads, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)


def test_a_short_query_does_not_wait_for_all_threads_of_a_large_machine() -> None:
    assert count_workers(12, MINILM, MIN_WORK_OF_ENCODER) == count_workers(4, MINILM, MIN_WORK_OF_ENCODER) == 16


def test_a_batch_uses_all_threads() -> None:
    assert count_workers(1000, MINILM, MIN_WORK_OF_ENCODER) == 64


def test_a_head_with_one_output_and_an_empty_batch_use_one_thread() -> None:
    assert count_threads(100 * 384, MIN_WORK_OF_LINEAR) == count_workers(0, MINILM, MIN_WORK_OF_ENCODER) == 1


def run_script(script: str) -> int:
    done = subprocess.run([sys.executable, "-c", MODEL + script], capture_output=True, text=True, check=False)
    if done.returncode == 5:
        pytest.skip("needs the C library")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_texts_and_batches_in_turn_start_no_new_threads() -> None:
    assert run_script(COUNT_THREADS) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_that_end_free_their_scratch_memory() -> None:
    assert run_script(MEASURE_GROWTH) < 64  # MiB; 3 to 17 measured, and 184 if they do not
