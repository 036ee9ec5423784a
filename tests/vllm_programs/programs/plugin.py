"""Data of its own format through an IO processor plugin."""

from vllm import LLM

MODEL = "tiny"
PLUGIN = "lengths"


def main():
    llm = LLM(
        model=MODEL,
        trust_remote_code=True,
        enforce_eager=True,
        max_num_seqs=32,
        io_processor_plugin=PLUGIN,
        enable_mm_embeds=True,
    )
    prompt = {"data": {"texts": ["a red bird", "the cat"]}}
    pooler_output = llm.encode(prompt, pooling_task="plugin")
    return pooler_output[0].outputs
