"""Embed a folder of documents on Ray and search it: chunks, Parquet files, a FAISS index, a plot of the speed.

python corpus.py index ../../docs --store /tmp/store                # a cluster on this machine
python corpus.py index /shared/texts --store /shared/store --address auto --max-replicas 64
python corpus.py search /tmp/store "how are requests replayed?"
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.parquet

from cenote import LLM
from cenote.config.ray import RayConfig
from cenote.ray import PartSummary, run_files

SUFFIXES = (".md", ".txt", ".rst")
MAX_CHARS = 1200  # of a chunk: about 300 tokens
CHUNKS_PER_FILE = 10_000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    index = commands.add_parser("index", help="chunk, embed and index a folder; an interrupted run continues")
    index.add_argument("folder", type=Path)
    index.add_argument("--store", type=Path, required=True, help="folder for the results, seen by all nodes")
    index.add_argument("--model", help="hub name or folder; the default model if unset")
    index.add_argument("--address", help="Ray cluster; one on this machine if unset")
    index.add_argument("--max-replicas", type=int)
    index.add_argument("--num-gpus", type=float, default=0.0)
    search = commands.add_parser("search", help="print the chunks nearest to a query")
    search.add_argument("store", type=Path)
    search.add_argument("query")
    search.add_argument("--top", type=int, default=5)
    args = parser.parse_args(argv)
    return index_folder(args) if args.command == "index" else search_store(args)


def index_folder(args: argparse.Namespace) -> int:
    args.store.mkdir(parents=True, exist_ok=True)
    num_chunks = write_chunks(args.folder, args.store / "chunks")
    print(f"{num_chunks:,} chunks")
    timeline = Timeline()
    options = {} if args.model is None else {"model": args.model}
    summary = run_files(
        str(args.store / "chunks"),
        str(args.store / "vectors"),
        id_column="id",
        columns=["text"],
        ray_config=RayConfig(
            engine="ray", address=args.address, max_replicas=args.max_replicas, num_gpus=args.num_gpus
        ),
        part_rows=max(16, min(4096, num_chunks // 64)),
        on_part=timeline.add,
        tokenization_kwargs={"truncate_prompt_tokens": -1},
        **options,
    )
    print(f"{summary.num_rows:,} chunks embedded, {summary.num_failed} failed, {timeline.rows_per_s:,.0f} chunks/s")
    (args.store / "settings.json").write_text(json.dumps(options))
    build_index(args.store)
    if timeline.points:
        (args.store / "throughput.svg").write_text(timeline.plot())
        print(f"throughput over time: {args.store / 'throughput.svg'}")
    return 1 if summary.num_failed else 0


def write_chunks(folder: Path, target: Path) -> int:
    """Write the chunks of all documents as JSON lines; files that have not changed are left alone."""
    target.mkdir(exist_ok=True)
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    chunks = [
        {"id": f"{path.relative_to(folder)}#{number}", "text": text}
        for path in paths
        for number, text in enumerate(split_text(path.read_text(errors="replace")))
    ]
    for start in range(0, len(chunks), CHUNKS_PER_FILE):
        path = target / f"{start // CHUNKS_PER_FILE:05d}.jsonl"
        content = "".join(json.dumps(chunk) + "\n" for chunk in chunks[start : start + CHUNKS_PER_FILE])
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
    return len(chunks)


def split_text(text: str) -> Iterator[str]:
    """Join paragraphs to chunks; the last paragraph of a chunk begins the next one."""
    taken: list[str] = []
    for paragraph in filter(None, map(str.strip, text.split("\n\n"))):
        if taken and sum(map(len, taken)) + len(paragraph) > MAX_CHARS:
            yield "\n\n".join(taken)
            taken = taken[-1:] if len(taken[-1]) < MAX_CHARS // 4 else []
        taken.append(paragraph)
    if taken:
        yield "\n\n".join(taken)


def build_index(store: Path) -> None:
    """Write a FAISS index of the vectors, and the chunks in its order."""
    import faiss

    table = pyarrow.parquet.read_table(store / "vectors", columns=["id", "embedding", "error"])
    table = table.filter(pyarrow.compute.is_null(table["error"]))
    vectors = table["embedding"].combine_chunks()
    matrix = np.asarray(vectors.flatten(), dtype=np.float32).reshape(len(table), vectors.type.list_size)
    index = faiss.IndexFlatIP(matrix.shape[1])  # vectors have length 1: the inner product is the cosine
    index.add(matrix)
    faiss.write_index(index, str(store / "index.faiss"))
    (store / "ids.json").write_text(json.dumps(table["id"].to_pylist()))


def search_store(args: argparse.Namespace) -> int:
    import faiss

    index = faiss.read_index(str(args.store / "index.faiss"))
    ids = json.loads((args.store / "ids.json").read_text())
    texts = {}
    for path in sorted((args.store / "chunks").glob("*.jsonl")):
        texts |= {chunk["id"]: chunk["text"] for chunk in map(json.loads, path.read_text().splitlines())}
    with LLM(**json.loads((args.store / "settings.json").read_text())) as llm:
        (output,) = llm.embed([args.query], use_tqdm=False)
    scores, places = index.search(output.outputs.data.float().numpy().reshape(1, -1), args.top)
    for score, place in zip(scores[0].tolist(), places[0].tolist(), strict=True):
        if place >= 0:
            print(f"{score:.3f}  {ids[place]}\n       {' '.join(texts[ids[place]].split())[:150]}")
    return 0


class Timeline:
    """Rows done over time, from the start of the first part: without the time to start actors and load the model."""

    def __init__(self) -> None:
        self.started_at = 0.0
        self.points: list[tuple[float, int]] = []

    def add(self, summary: PartSummary) -> None:
        self.started_at = self.started_at or time.monotonic() - summary.seconds
        done = self.points[-1][1] if self.points else 0
        self.points.append((time.monotonic() - self.started_at, done + summary.num_rows))

    @property
    def rows_per_s(self) -> float:
        return self.points[-1][1] / self.points[-1][0] if self.points else 0.0

    def plot(self, width: int = 640, height: int = 240) -> str:
        """Return an SVG of the chunks per second in each of 30 intervals."""
        step = self.points[-1][0] / 30
        totals: list[Any] = [0] * 31
        for seconds, done in self.points:
            for place in range(min(30, int(seconds / step)), 31):
                totals[place] = done
        rates = [(after - before) / step for before, after in zip(totals, totals[1:], strict=False)]
        top = max(rates) or 1.0
        points = " ".join(
            f"{40 + place * (width - 60) / 29:.0f},{height - 30 - rate / top * (height - 60):.0f}"
            for place, rate in enumerate(rates)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="12"><text x="40" y="18">chunks per second, up to {top:,.0f}</text>'
            f'<text x="40" y="{height - 8}">0 s</text>'
            f'<text x="{width - 20}" y="{height - 8}" text-anchor="end">{self.points[-1][0]:.0f} s</text>'
            f'<path d="M40 30V{height - 30}H{width - 20}" fill="none" stroke="gray"/>'
            f'<polyline points="{points}" fill="none" stroke="steelblue" stroke-width="2"/></svg>\n'
        )


if __name__ == "__main__":
    sys.exit(main())
