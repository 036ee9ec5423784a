"""What a request costs, known before it is tokenized: tokens to compute, and bytes of its texts and of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from cenote.protocol.input_types import (
    ChunkedDocument,
    Conversation,
    Input,
    compute_input_size,
    compute_text_size,
    count_nested_chars,
    count_variable_chars,
)
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Task
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest
from cenote.protocol.results import PoolResult

# English has 4 characters per token, most other languages between 1.5 and 3
CHARS_PER_TOKEN = 3
# an image is between 256 and 1,280 tokens in most models; its bytes say little about that
TOKENS_PER_IMAGE = 1024
IMAGE_TYPES = ("image_url", "input_image", "image", "image_pil")
DEFAULT_EMBEDDING_SIZE = 1024  # of models that do not tell
# bytes per number of an answer: the float32 array, the encoded text, and for JSON the list of its parts
JSON_BYTES, BASE64_BYTES, BINARY_BYTES = 16, 10, 8
BYTES_BY_FORMAT: dict[str | None, int] = {"base64": BASE64_BYTES, "bytes": BINARY_BYTES, "bytes_only": BINARY_BYTES}
# non-zero weights of a sparse vector, with their token ids; the vocabulary is a bound that no text reaches
SPARSE_WEIGHTS_PER_TOKEN, MAX_SPARSE_WEIGHTS = 32, 32_768
SPARSE_WEIGHT_BYTES = 2 * JSON_BYTES
# bodies and answers up to this size are not counted: the number of connections bounds them
SMALL_BYTES = 16 * 1024
# of an entry of an answer besides its numbers
ENTRY_BYTES = 64


class RequestCost(NamedTuple):
    tokens: int  # to compute
    num_bytes: int = 0  # of texts that are repeated per input, and of the answer, as far as they exceed the body
    num_inputs: int = 1
    num_variable_chars: int = 0  # of template variables, as often as they are rendered
    num_chars: int | None = None  # of inputs that are not texts, and of those variables


def estimate_pool(request: PoolRequest, model_info: ModelInfo, encoding_format: str | None) -> RequestCost:
    inputs = request.inputs
    max_tokens = model_info.max_model_len
    prompt_chars, num_results, variable_chars, num_chars = 0, len(inputs), 0, None
    if num_results == 1 and type(text := inputs[0]) is str:
        prompt_chars = _count_prompt_chars(request, model_info)
        tokens = (len(text) + prompt_chars) // CHARS_PER_TOKEN + 1
        if tokens > max_tokens:
            tokens = max_tokens
    elif inputs and isinstance(inputs[0], str) and set(map(type, inputs)) == {str}:
        texts = cast("Sequence[str]", inputs)
        prompt_chars = _count_prompt_chars(request, model_info)
        num_chars = sum(map(len, texts)) + len(texts) * prompt_chars
        if num_chars <= max_tokens:  # as in nearly all requests: no input is longer than the model's maximum
            tokens = num_chars // CHARS_PER_TOKEN + len(texts)
        else:
            tokens = sum([min(max_tokens, (len(text) + prompt_chars) // CHARS_PER_TOKEN + 1) for text in texts])
    else:
        tokens = sum([min(max_tokens, count_tokens(item)) for item in inputs])
        num_results = sum([len(item.chunks) if isinstance(item, ChunkedDocument) else 1 for item in inputs])
        variable_chars = count_variable_chars(inputs)
        num_chars = sum(map(compute_input_size, inputs)) + variable_chars
        tokens = min(tokens + variable_chars // CHARS_PER_TOKEN, len(inputs) * max_tokens)
    if request.tokenization.pad_prompt_tokens:
        tokens = len(inputs) * max_tokens
    num_bytes = num_results * prompt_chars + variable_chars
    if request.task == "embed" and not request.extra_tasks:  # most requests, in one step
        bytes_per_number = BYTES_BY_FORMAT.get(encoding_format, JSON_BYTES)
        vector_bytes = (model_info.embedding_size or DEFAULT_EMBEDDING_SIZE) * bytes_per_number
        num_bytes += num_results * (vector_bytes + ENTRY_BYTES)
        return RequestCost(tokens, num_bytes, num_results, variable_chars, num_chars)
    for task in (request.task, *request.extra_tasks):
        num_bytes += estimate_answer(task, num_results, tokens, model_info, encoding_format)
    return RequestCost(tokens, num_bytes, num_results, variable_chars, num_chars)


def _count_prompt_chars(request: PoolRequest, model_info: ModelInfo) -> int:
    """Return the length of the prompt before every text; of the model's own prompts, which are short, roughly."""
    if request.prompt is not None:
        return len(request.prompt)
    if request.prompt_name is not None:
        return len(model_info.prompts.get(request.prompt_name, ""))
    return len(model_info.default_prompt or "")


def count_tokens(item: Input) -> int:
    """Return the tokens of an input: exact for token ids, estimated for texts and images."""
    if isinstance(item, list) or hasattr(item, "dtype"):  # an array: NumPy is not imported before the server listens
        return len(item)  # type: ignore[arg-type]
    if isinstance(item, str):
        return len(item) // CHARS_PER_TOKEN + 1
    if isinstance(item, Conversation):
        return _count_parts(item.messages)
    if hasattr(item, "content"):
        return _count_parts(item.content)
    if images := getattr(item, "images", ()):  # preprocessed already
        return compute_text_size([item]) // CHARS_PER_TOKEN + 1 + TOKENS_PER_IMAGE * len(images)
    return compute_input_size(item) // CHARS_PER_TOKEN + 1


def _count_parts(value: object, depth: int = 8) -> int:
    """Return the tokens of messages or content parts."""
    if isinstance(value, str):
        return len(value) // CHARS_PER_TOKEN + 1
    if isinstance(value, dict):
        if value.get("type") in IMAGE_TYPES or "image" in value:
            return TOKENS_PER_IMAGE
        value = list(value.values())
    return sum([_count_parts(item, depth - 1) for item in value]) if depth and isinstance(value, list) else 0


def estimate_answer(
    task: Task, num_inputs: int, num_tokens: int, model_info: ModelInfo, encoding_format: str | None
) -> int:
    """Return the bytes of the answer of one task, in memory and encoded."""
    bytes_per_number = BYTES_BY_FORMAT.get(encoding_format, JSON_BYTES)
    if task == "embed":
        numbers = num_inputs * (model_info.embedding_size or DEFAULT_EMBEDDING_SIZE)
    elif task == "token_embed":
        numbers = num_tokens * (model_info.embedding_size or DEFAULT_EMBEDDING_SIZE)
    elif task == "token_classify":
        numbers = num_tokens * len(model_info.labels or (1,))
    elif task == "sparse_embed":
        weights = min(num_tokens * SPARSE_WEIGHTS_PER_TOKEN, num_inputs * MAX_SPARSE_WEIGHTS)
        return weights * SPARSE_WEIGHT_BYTES + num_inputs * ENTRY_BYTES
    else:
        numbers = num_inputs * len(model_info.labels or (1,))
    return numbers * bytes_per_number + num_inputs * ENTRY_BYTES


def measure_answer(results: Sequence[PoolResult], encoding_format: str | None) -> int:
    """Return the bytes of an answer, in memory and encoded, of which the arrays are there."""
    bytes_per_number = BYTES_BY_FORMAT.get(encoding_format, JSON_BYTES)
    numbers = sum([item.data.size for item in results])
    numbers += sum([array.size for item in results for array in item.extra_data.values()])
    return numbers * bytes_per_number + len(results) * ENTRY_BYTES


def estimate_score(request: ScoreRequest, model_info: ModelInfo) -> RequestCost:
    """Cross-encoders read the query and the instruction with every document, others once."""
    num_queries, num_documents = len(request.queries), len(request.documents)
    query_chars = list(map(_count_chars, request.queries))
    document_chars = list(map(_count_chars, request.documents))
    variable_chars = count_nested_chars(request.template_kwargs) if request.template_kwargs else 0
    extra_chars = variable_chars + len(request.instruction or "") + len(request.template or "")
    score_type = request.score_type or (model_info.score_types[0] if model_info.score_types else None)
    max_tokens = model_info.max_model_len
    if score_type != "cross-encoder":
        chars = query_chars + document_chars
        tokens = sum([min(max_tokens, count // CHARS_PER_TOKEN + 1) for count in chars])
        copies = extra_chars * (num_queries + num_documents)
    else:
        queries = query_chars * num_documents if num_queries == 1 else query_chars
        pairs = [query + document + extra_chars for query, document in zip(queries, document_chars, strict=False)]
        chars = pairs
        tokens = sum([min(max_tokens, count // CHARS_PER_TOKEN + 1) for count in pairs])
        copies = sum(pairs) - sum(query_chars) - sum(document_chars)
    if request.tokenization.pad_prompt_tokens:
        tokens = len(chars) * max_tokens
    num_bytes = max(0, copies) + num_documents * 2 * ENTRY_BYTES
    return RequestCost(tokens, num_bytes, num_documents, num_documents * variable_chars)


def _count_chars(item: object) -> int:
    """Return the size of a query or document in characters; an image counts as its tokens."""
    return len(item) if isinstance(item, str) else CHARS_PER_TOKEN * _count_parts(getattr(item, "content", ""))


def estimate_entities(request: EntityRequest, model_info: ModelInfo) -> RequestCost:
    """GLiNER reads all labels before every text; with a stride, all of a long text is computed in windows."""
    label_chars = sum(map(len, request.labels or ()))
    texts = [item for item in request.pool_request.inputs if isinstance(item, str)]
    is_windowed = request.stride is not None
    max_tokens = model_info.max_model_len
    counts = [(len(text) + label_chars) // CHARS_PER_TOKEN + 1 for text in texts]
    tokens = sum(counts) if is_windowed else sum([min(max_tokens, count) for count in counts])
    if is_windowed:  # windows overlap by `stride` tokens: each advances by what is left
        tokens = tokens * max_tokens // max(1, max_tokens - min(request.stride or 0, max_tokens - 1))
    num_classes = len(request.labels or model_info.labels or (1,))
    return RequestCost(tokens, len(texts) * label_chars + tokens * (num_classes * 4 + ENTRY_BYTES), len(texts))


def estimate_tokenize(prompt: Input, max_tokens: int, token_bytes: int) -> RequestCost:
    """Tokenizing takes a small part of the time of computing a token; every byte of a text may become one.

    `token_bytes`: of a token in the answer.
    """
    tokens = count_tokens(prompt)
    most = len(prompt) * (1 if prompt.isascii() else MAX_UTF8_BYTES) if isinstance(prompt, str) else tokens
    return RequestCost(tokens // TOKENIZE_SHARE + 1, min(most, max_tokens) * token_bytes)


TOKENIZE_SHARE = 16
MAX_UTF8_BYTES = 4
# of a token in the answer, which a list of Python's numbers and its JSON hold; with its text and its place in the text
TOKEN_BYTES, TOKEN_TEXT_BYTES = 48, 400
MAX_TOKEN_CHARS = 64  # of the text of a token id, as far as a vocabulary has longer ones only by the dozen


def estimate_detokenize(token_ids: Sequence[int]) -> RequestCost:
    return RequestCost(len(token_ids) // TOKENIZE_SHARE + 1, len(token_ids) * MAX_TOKEN_CHARS)


def estimate_plugin(request: PluginRequest) -> RequestCost:
    """The format of the data is the plugin's: its texts count as the input."""
    return RequestCost(_count_parts(request.data) + 1)
