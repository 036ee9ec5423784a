"""Published rerankers made of language models: how they are recognised, their label tokens and score templates."""

from __future__ import annotations

import re
from dataclasses import dataclass

KALM_FILE = "kalm_cross_encoder_config.json"


@dataclass(frozen=True, slots=True)
class RerankerRecipe:
    """A published reranker: how its checkpoints are recognised, and its label tokens."""

    name: str  # also the name of its score template
    model_types: tuple[str, ...]  # of config.json
    name_pattern: re.Pattern[str]  # of repository and folder names
    prompt_sentence: str | None  # part of its prompt, found in chat templates and model cards
    tokens: tuple[str | int, ...]  # vocabulary entries or token ids
    method: str
    file: str | None = None  # that no other model has
    scale: float = 1.0  # of the logits
    code: str | None = None  # file of the repository's own code, in auto_map; LogitScore files replace it
    activation: str | None = None  # of the score, if it is not a probability; None: whatever config.json says
    advice: str | None = None  # for other rerankers of its model type, which are refused


QWEN3_PROMPT_SENTENCE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
)
RECIPES = (
    RerankerRecipe(
        "qwen3_reranker",
        ("qwen3",),
        re.compile(r"qwen3[-_.]?reranker", re.IGNORECASE),
        QWEN3_PROMPT_SENTENCE,
        ("no", "yes"),
        "from_2_way_softmax",
    ),
    RerankerRecipe(
        "qwen3_vl_reranker",
        ("qwen3_vl",),
        re.compile(r"qwen3[-_.]?vl[-_.]?reranker", re.IGNORECASE),
        QWEN3_PROMPT_SENTENCE,
        ("no", "yes"),
        "from_2_way_softmax",
    ),
    RerankerRecipe(
        "mxbai_rerank_v2",
        ("qwen2",),
        re.compile(r"mxbai[-_]rerank[-_]\w+[-_]v2", re.IGNORECASE),
        "You are a search relevance expert who evaluates how well documents match search queries.",
        ("0", "1"),
        "from_2_way_softmax",
    ),
    RerankerRecipe(
        "bge_reranker_v2_gemma",
        ("gemma",),
        re.compile(r"bge[-_]reranker[-_]v2[-_]gemma", re.IGNORECASE),
        "Given a query A and a passage B, determine whether the passage contains an answer to the query",
        ("Yes",),
        "no_post_processing",
    ),
    RerankerRecipe(
        "monot5",
        ("t5",),
        re.compile(r"mono[-_]?t5", re.IGNORECASE),
        "Query: {query} Document: {document} Relevant:",
        ("\u2581false", "\u2581true"),
        "from_2_way_softmax",
    ),
    RerankerRecipe(
        "kalm_reranker_v1",
        ("t5gemma2",),
        re.compile(r"kalm[-_]reranker[-_]v1", re.IGNORECASE),
        QWEN3_PROMPT_SENTENCE,
        ("no", "yes"),
        "from_2_way_softmax",
        file=KALM_FILE,
        advice="use score_template='kalm_reranker_v1' for a copy of KaLM-Reranker-V1",
    ),
    # zerank-1, zerank-1-small, and zerank-2 before it had files of Sentence Transformers
    RerankerRecipe(
        "zerank",
        ("qwen3",),
        re.compile(r"zerank[-_]1", re.IGNORECASE),
        None,
        ("Yes",),
        "no_post_processing",
        scale=0.2,
        code="modeling_zeranker",
    ),
    # the score is the logit of the first vocabulary entry, whatever that is
    RerankerRecipe(
        "ctxl_rerank_v2",
        ("qwen3", "mistral"),
        re.compile(r"ctxl[-_]rerank[-_]v2", re.IGNORECASE),
        "Check whether a given document contains information helpful to answer the query.",
        (0,),
        "no_post_processing",
        activation="identity",
    ),
)
ARCHITECTURE_TEMPLATES = (
    "bge_reranker_v2_minicpm",
    "bge_reranker_v2_5_gemma2",
    "hhem",
    "nemotron_rerank",
    "nemotron_vl_rerank",
    "jina_reranker_m0",
    "querit",
)
TEMPLATE_NAMES = (*(recipe.name for recipe in RECIPES), *ARCHITECTURE_TEMPLATES)
# templates that do not contain the document verbatim
NON_VERBATIM_TEMPLATES = ("nemotron_vl_rerank", "zerank")
