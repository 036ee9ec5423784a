"""Draw a heat map of where a late-interaction model finds the words of a question on a page.

    python examples/late_interaction_heat_map.py --output heat_map.png
    python examples/late_interaction_heat_map.py --model TomoroAI/tomoro-colqwen3-embed-4b \\
        --question "How much was caught in April?" --page scan.png --output heat_map.png

Such a model gives every word of the question and every square of the page a vector of its own; the score of a page is,
word by word, that of the square that fits best. The squares of each word are what is drawn here.
Without a model it takes one that knows a few words (tiny_colqwen3.py), without a page one that is drawn on the spot.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from pages import draw_chart_page, load_font
from PIL import Image, ImageDraw
from tiny_colqwen3 import write_checkpoint
from torch import Tensor

from cenote import LLM

IMAGE_TOKEN = "<|image_pad|>"  # the token of an image patch in Qwen models
PROMPT = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
PANEL_WIDTH, GAP, HEADER_HEIGHT, FOOTER_HEIGHT = 300, 24, 96, 84
INK, MUTED, PAPER = (30, 32, 38), (110, 114, 124), (255, 255, 255)
# colour scale from low to high
COLOUR_SCALE = np.array([(252, 246, 226), (250, 210, 120), (240, 140, 60), (206, 60, 60), (120, 20, 70)], dtype=float)


@dataclass(frozen=True, eq=False)
class WordHeatMap:
    """Similarity of each image patch with a word."""

    word: str
    grid: Tensor  # [rows, columns], cosines

    @property
    def max_similarity(self) -> float:
        return float(self.grid.max())


def compute_heat_maps(llm: LLM, question: str, page: Image.Image) -> list[WordHeatMap]:
    """Return a heat map for every word of the question, in order."""
    (asked,) = llm.encode(question, pooling_task="token_embed", use_tqdm=False)
    image = {"prompt": PROMPT, "multi_modal_data": {"image": page}}
    (seen,) = llm.encode(image, pooling_task="token_embed", use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    is_square = torch.tensor(seen.prompt_token_ids) == tokenizer.token_to_id(IMAGE_TOKEN)
    similarities = asked.outputs.data @ seen.outputs.data[is_square].T  # both are normalised
    rows, columns = find_grid(similarities.shape[1], page)
    words = group_tokens_by_word(tokenizer.encode(question).word_ids, tokenizer.encode(question).offsets)
    return [
        WordHeatMap(question[start:end].strip(), similarities[tokens].mean(dim=0).view(rows, columns))
        for tokens, (start, end) in words
        if any(letter.isalnum() for letter in question[start:end])
    ]


def group_tokens_by_word(
    numbers: Sequence[int | None], offsets: Sequence[tuple[int, int]]
) -> list[tuple[list[int], tuple[int, int]]]:
    """Return the tokens and the span of every word; special tokens belong to no word."""
    found: dict[int, list[int]] = {}
    for token, number in enumerate(numbers):
        if number is not None:
            found.setdefault(number, []).append(token)
    return [(tokens, (offsets[tokens[0]][0], offsets[tokens[-1]][1])) for tokens in found.values()]


def find_grid(count: int, page: Image.Image) -> tuple[int, int]:
    """Return the rows and columns of that many patches that best match the aspect ratio of the page."""
    shapes = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
    return min(shapes, key=lambda shape: abs(np.log(shape[1] / shape[0] * page.height / page.width)))


def apply_colour_scale(shares: np.ndarray) -> np.ndarray:
    """Map values from 0 to 1 to colours, [..., 3]."""
    places = np.clip(shares, 0, 1) * (len(COLOUR_SCALE) - 1)
    low = np.minimum(places.astype(int), len(COLOUR_SCALE) - 2)
    part = (places - low)[..., None]
    return COLOUR_SCALE[low] * (1 - part) + COLOUR_SCALE[low + 1] * part


def draw_panel(page: Image.Image, heat: WordHeatMap, lowest: float, highest: float) -> Image.Image:
    """Overlay the heat map on the greyscale page; high values are more opaque."""
    size = (PANEL_WIDTH, round(PANEL_WIDTH * page.height / page.width))
    shares = (heat.grid.numpy() - lowest) / max(highest - lowest, 1e-9)
    smooth = np.asarray(Image.fromarray(shares.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)).clip(0, 1)
    below = np.asarray(page.convert("L").resize(size).convert("RGB"), dtype=float) * 0.6 + 102
    cover = (0.05 + 0.65 * smooth)[..., None]
    mixed = below * (1 - cover) + apply_colour_scale(smooth) * cover
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))


def draw_figure(
    page: Image.Image, heat_maps: Sequence[WordHeatMap], question: str, name: str, num_panels: int
) -> Image.Image:
    """Draw the heat maps of the best words, their combination first, and the colour scale."""
    score = sum(heat.max_similarity for heat in heat_maps)
    strongest = sorted(heat_maps, key=lambda heat: heat.max_similarity, reverse=True)[:num_panels]
    whole = WordHeatMap("these words, on average", torch.stack([heat.grid for heat in strongest]).mean(dim=0))
    shown = [whole, *(heat for heat in heat_maps if heat in strongest)]
    lowest = max(0.0, min(float(heat.grid.min()) for heat in shown))
    highest = max(heat.max_similarity for heat in shown)
    height = round(PANEL_WIDTH * page.height / page.width)
    canvas = Image.new("RGB", (GAP + len(shown) * (PANEL_WIDTH + GAP), HEADER_HEIGHT + height + FOOTER_HEIGHT), PAPER)
    pen = ImageDraw.Draw(canvas)
    pen.text((GAP, 18), question, fill=INK, font=load_font(22))
    pen.text(
        (GAP, 48),
        f"{name}   ·   score {score:.2f} = the best square of every word, added up",
        fill=MUTED,
        font=load_font(14),
    )
    for number, heat in enumerate(shown):
        left = GAP + number * (PANEL_WIDTH + GAP)
        pen.text((left, HEADER_HEIGHT - 22), heat.word, fill=INK, font=load_font(15))
        best = f"best {heat.max_similarity:.2f}"
        pen.text(
            (left + PANEL_WIDTH - pen.textlength(best, load_font(13)), HEADER_HEIGHT - 20),
            best,
            fill=MUTED,
            font=load_font(13),
        )
        canvas.paste(draw_panel(page, heat, lowest, highest), (left, HEADER_HEIGHT))
        pen.rectangle(
            (left, HEADER_HEIGHT, left + PANEL_WIDTH - 1, HEADER_HEIGHT + height - 1), outline=(214, 216, 222)
        )
    _draw_legend(canvas, pen, HEADER_HEIGHT + height + 22, lowest, highest)
    return canvas


def _draw_legend(canvas: Image.Image, pen: ImageDraw.ImageDraw, top: int, lowest: float, highest: float) -> None:
    bar = apply_colour_scale(np.broadcast_to(np.linspace(0, 1, PANEL_WIDTH), (14, PANEL_WIDTH))).astype(np.uint8)
    canvas.paste(Image.fromarray(bar), (GAP, top))
    pen.rectangle((GAP, top, GAP + PANEL_WIDTH - 1, top + 13), outline=(214, 216, 222))
    for share in (0.0, 0.5, 1.0):
        written = f"{lowest + share * (highest - lowest):.2f}"
        left = GAP + share * PANEL_WIDTH - share * pen.textlength(written, load_font(13))
        pen.text((left, top + 20), written, fill=MUTED, font=load_font(13))
    pen.text(
        (GAP + PANEL_WIDTH + 12, top - 2), "cosine of a word and a square of the page", fill=MUTED, font=load_font(14)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a name of the hub, such as TomoroAI/tomoro-colqwen3-embed-4b")
    parser.add_argument("--question", default="Where is the red bar, and where is the text?")
    parser.add_argument("--page", help="image file (default: a generated page with a chart)")
    parser.add_argument("--panels", type=int, default=2, help="number of words shown in their own panel")
    parser.add_argument("--output", default="heat_map.png")
    given = parser.parse_args(arguments)
    page = Image.open(given.page).convert("RGB") if given.page else draw_chart_page()
    with TemporaryDirectory() as spare, LLM(given.model or str(write_checkpoint(Path(spare)))) as llm:
        found = compute_heat_maps(llm, given.question, page)
    name = given.model or "a tiny model that knows a few words"
    draw_figure(page, found, given.question, name, given.panels).save(given.output)
    for heat in found:
        row, column = divmod(int(heat.grid.argmax()), heat.grid.shape[1])
        print(
            f"{heat.word:15} {heat.max_similarity:6.3f}  in row {row + 1}, column {column + 1} of "
            f"{list(heat.grid.shape)}"
        )
    print(f"{given.output} shows it")


if __name__ == "__main__":
    main()
