"""Qwen3-Reranker from its original checkpoint, with texts that the program formats itself."""

from vllm import LLM

MODEL = "Qwen/Qwen3-Reranker-0.6B"
QUERY = "how big is berlin?"
DOCUMENTS = ["the city of berlin is big", "a red fish", "no", "people live in the old city, and in the new one"]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def get_llm() -> LLM:
    return LLM(
        model=MODEL,
        runner="pooling",
        hf_overrides={
            "architectures": ["Qwen3ForSequenceClassification"],
            "classifier_from_token": ["no", "yes"],
            "is_original_qwen3_reranker": True,
        },
    )


def main():
    queries = [f"{PREFIX}<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n"] * len(DOCUMENTS)
    documents = [f"<Document>: {document}{SUFFIX}" for document in DOCUMENTS]
    llm = get_llm()
    return [output.outputs.score for output in llm.score(queries, documents)]
