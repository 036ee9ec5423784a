"""Find the chunk that answers a question: chunks and question embedded by a server with the task token_embed."""

import argparse

import numpy as np
import requests

DOCUMENTS = {"city": "the cat is in the city. a red bird, a blue fish", "number": "two"}


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--chunk-size", type=int, default=4)
    parser.add_argument("--query", default="a red bird")
    return parser.parse_args()


def embed(args, texts, chunk_size):
    body = {
        "input": texts,
        "encoding_format": "float",
        "use_activation": True,
        "late_chunking_params": {"chunk_size": chunk_size},
    }
    response = requests.post(f"http://{args.host}:{args.port}/v1/embeddings", json=body, timeout=60)
    response.raise_for_status()
    return response.json()["data"]


def main(args):
    chunks, vectors = [], []
    for name, entry in zip(DOCUMENTS, embed(args, list(DOCUMENTS.values()), args.chunk_size), strict=True):
        for vector, chunk in zip(entry["embedding"], entry["late_chunking"]["chunks"], strict=True):
            if chunk["char_range"] is not None:
                start, end = chunk["char_range"]
                chunks.append((name, tuple(chunk["token_range"]), DOCUMENTS[name][start:end]))
                vectors.append(vector)
    (query,) = embed(args, [args.query], 512)
    scores = np.array(vectors) @ np.array(query["embedding"][0])
    return [(*chunks[index], float(scores[index])) for index in np.argsort(-scores)]


if __name__ == "__main__":
    for line in main(parse_args()):
        print(*line)
