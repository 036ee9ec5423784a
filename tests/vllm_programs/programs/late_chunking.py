"""Vectors of chunks of a fixed number of tokens, each in the context of its document, and the text of each chunk."""

from argparse import Namespace

from vllm import LLM, EngineArgs, PoolingParams
from vllm.config import PoolerConfig
from vllm.pooling_params import LateChunkingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

DOCUMENTS = ["the cat is in the city. a red bird, a blue fish", "two"]


def parse_args():
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--chunk-size", type=int, default=4)
    parser.set_defaults(runner="pooling", pooler_config=PoolerConfig(task="token_embed"), enforce_eager=True)
    return parser.parse_args()


def main(args: Namespace):
    options = dict(vars(args))
    params = PoolingParams(late_chunking_params=LateChunkingParams(chunk_size=options.pop("chunk_size")))
    outputs = LLM(**options).embed(DOCUMENTS, pooling_params=params)
    found = []
    for document, output in zip(DOCUMENTS, outputs, strict=True):
        if output.error is not None:
            raise output.error.to_exception()
        metadata = output.late_chunking
        texts = [None if chunk.char_range is None else document[slice(*chunk.char_range)] for chunk in metadata.chunks]
        found.append((output.outputs.data, metadata.input_tokens, texts))
    return found


if __name__ == "__main__":
    for vectors, num_tokens, texts in main(parse_args()):
        print(num_tokens, "tokens", tuple(vectors.shape), texts)
