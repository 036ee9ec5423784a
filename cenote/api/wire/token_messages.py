"""Messages for inputs that front-ends tokenize: options registered once, batches of token ids, batches of results."""

from __future__ import annotations

import msgspec

from cenote.api.wire.messages import Call, JSONBytes, Message, Operands, SerializedError, Shapes
from cenote.protocol.images import PixelNormalization
from cenote.protocol.params import PoolingParams, Role, Task
from cenote.protocol.scheduling import SchedulingParams

# monotonic: the batch was received, started, packed, computed (results on the host), passed on to be sent, and sent
BatchTimesTuple = tuple[float, float, float, float, float, float]

# calls whose deadlines differ by less may share a batch, which has the earliest of them
DEADLINE_BUCKET_S = 0.01


def get_deadline_bucket(deadline_at: float) -> int:
    """Return equal numbers for deadlines that may share a batch."""
    return int(deadline_at / DEADLINE_BUCKET_S)


# from a front-end to the engine process


class OptionsRegistered(Message):
    max_tokens: int
    limit_name: str
    is_bounded: bool
    max_padded_tokens: int | None
    chunk_tokens: int  # longer texts are split into chunks of so many; 0: none are
    normalizes: bool  # the mean of the chunks


class RegisterOptions(Call[OptionsRegistered]):
    """Ask whether the model supports these options; they get a number that batches refer to."""

    options_id: int
    task: Task
    extra_tasks: tuple[Task, ...]
    params: PoolingParams | None
    adapter: str | None
    scheduling: SchedulingParams
    has_operands: bool = False
    role: Role | None = None  # of models with different modules for queries and documents


class ImageRecord(msgspec.Struct, array_like=True):
    """A preprocessed image, without its arrays."""

    dtype: str  # of the patches
    shape: tuple[int, int]
    patch_grids: tuple[tuple[int, int], ...]
    num_embeds: int
    original_size: tuple[int, int]
    cache_key: bytes
    normalization: PixelNormalization | None
    has_row_order: bool


class BatchImages(msgspec.Struct, array_like=True):
    """The images of inputs, each of which several may share."""

    indices: list[list[int]]  # of each input, among the records, in the order of their tokens
    num_axes: int  # of the M-RoPE positions of inputs with images; 0: they have none
    records: list[ImageRecord]


class TokenBatch(Message):
    """Tokenized inputs of one or more calls with equal options and about the same deadline.

    Arrays: token ids as int32, metadata records as int64, then a row mask of one byte per token if there is one. For
    each input with images the indices of their tokens and the M-RoPE positions as int64; for each image the row order
    as int64 and the patches. Each array is padded to 8 bytes.
    """

    options_id: int
    call_ids: list[int]
    num_inputs: list[int]  # of each call
    num_tokens: int
    has_row_mask: bool
    deadline_at: float  # the earliest of the calls; 0.0: none
    # a large call is sent in several messages
    start: int  # inputs of the call that were sent before
    is_last: bool
    is_isolated: bool = False  # each input may crash the engine process and runs in a batch of its own
    operands: Operands | None = None
    images: BatchImages | None = None
    num_continued: int = 0  # inputs that are further chunks of a text


class RefusedRequests(Message):
    """The number of requests that the front-end has answered with an error and not sent, by outcome."""

    outcomes: dict[str, int]


# from the engine process to a front-end


class TokenResults(Message):
    """Results of inputs of any calls.

    Arrays: call ids and input numbers as int64, then for each task the results as float32.
    """

    num_results: int
    shapes: list[Shapes]  # for each task: one for all results, or one each
    times: BatchTimesTuple


class TokenErrors(Message):
    """Errors of inputs; the input number -1 stands for all inputs of a call."""

    errors: list[tuple[int, int, SerializedError]]  # call id, input number, error


class RouteInfo(msgspec.Struct, array_like=True):
    """How the renderer of a model is made, or of some of its modules; with its image processor."""

    roles: list[Role]  # of the texts that it renders; none: of all that no other one does
    tokenizer: bytes  # tokenizer.json; empty if a part of it is written in Python
    tokenizer_checkpoint: JSONBytes  # whose files make it then
    text_suffix: str | None  # that ends every text then
    tokenizer_settings: JSONBytes
    renderer_settings: JSONBytes


class RendererInfo(Message):
    """Sent before EngineReady: how the renderers of the engine and its tasks are made."""

    routes: list[RouteInfo]  # first the default one
    task_settings: JSONBytes
    step_timeout_s: float  # after which the images of one input are taken for a hang


TokenRequest = RegisterOptions | TokenBatch | RefusedRequests
TokenResponse = OptionsRegistered | TokenResults | TokenErrors | RendererInfo
