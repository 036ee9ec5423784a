"""Classify with a LoRA adapter."""

from vllm import LLM
from vllm.lora.request import LoRARequest
from vllm.transformers_utils.repo_utils import hf_api

MODEL = "Skywork/Skywork-Reward-V2-Qwen3-0.6B"
LORA_PATH = ""
PROMPT = "who live in the old city?"


def main():
    lora_path = LORA_PATH or hf_api().snapshot_download(repo_id="AmirMohseni/skywork-qwen3-0.6b-reward-lora")
    llm = LLM(model=MODEL, runner="pooling", enable_lora=True, max_lora_rank=8, max_model_len=60)
    (output,) = llm.classify(PROMPT, lora_request=LoRARequest("reward-lora", 1, lora_path))
    (plain,) = llm.classify(PROMPT)
    return output.outputs.probs, plain.outputs.probs
