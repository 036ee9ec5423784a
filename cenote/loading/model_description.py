"""ModelDescription: a model with all settings resolved, before its weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cenote.config.device import Device
from cenote.config.engine import Quantization
from cenote.config.options import Sourced
from cenote.loading.card_evidence import CardEvidence
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.checkpoint_kind import head_of_kind
from cenote.loading.colbert import LateInteraction
from cenote.loading.model_config import ModelConfig
from cenote.loading.model_prompts import ModelPrompts
from cenote.loading.router import ModuleRoute
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.loading.token_labels import TokenLabels
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.registry import ArchitectureEntry, CheckpointKind
from cenote.pooling.plan import PoolingPlan
from cenote.protocol.input_types import ScoreTemplate
from cenote.protocol.params import ScoreType, Task
from cenote.utils.dtypes import Dtype

# score type by kind, where it does not follow from the tasks
SCORE_TYPE_BY_KIND: dict[CheckpointKind, ScoreType] = {
    "sparse": "sparse",
    "multi_vector": "late-interaction",
    "listwise": "listwise",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model with all settings resolved, before loading."""

    name: str  # in messages and responses
    checkpoint: Checkpoint
    config: HFConfig
    entry: ArchitectureEntry
    architecture: Architecture
    kind: Sourced[CheckpointKind]
    plan: PoolingPlan
    model_tasks: tuple[Task, ...]  # tasks that the model supports, also those that the pooler config excludes
    num_labels: int
    labels: list[str] | None
    token_labels: TokenLabels | None
    score_template: Sourced[ScoreTemplate] | None  # joins query and document; None: the tokenizer's pair template
    sentence_transformers: SentenceTransformersFiles
    prompts: ModelPrompts
    late_interaction: LateInteraction | None  # of models that return one embedding per token
    max_length: Sourced[int]
    device: Sourced[Device]
    dtype: Sourced[Dtype]
    head_dtype: Sourced[Dtype]
    matmul_dtype: Sourced[Dtype]  # in which linear layers multiply, if they are not quantized
    quantization: Sourced[Quantization | None]
    find_tokenizer: Callable[[], Checkpoint]  # finds the checkpoint that the tokenizer is loaded from
    deterministic: bool = False  # results of an input do not depend on the other inputs of its batch
    card: CardEvidence = CardEvidence()  # of the model card, compared with the rest
    doubts: tuple[str, ...] = ()  # what may be wrong and how to correct it, one line each; logged as warnings at load

    @property
    def head(self) -> Head | None:
        """Return the head for the kind of this model."""
        return head_of_kind(self.kind.value, self.architecture)

    @property
    def score_type(self) -> ScoreType | None:
        return SCORE_TYPE_BY_KIND.get(self.kind.value)

    @property
    def has_role_formats(self) -> bool:
        """Whether queries and documents are formatted differently."""
        return self.late_interaction is not None and self.late_interaction.settings is not None

    @property
    def has_routes(self) -> bool:
        """Whether queries and documents are encoded by different modules."""
        return len(self.sentence_transformers.routes) > 1

    @property
    def other_routes(self) -> tuple[ModuleRoute, ...]:
        """The routes of the model that this description does not cover: its default route does."""
        return self.sentence_transformers.routes[1:] if self.checkpoint.route is None else ()

    @property
    def divides_max_sim(self) -> bool:
        """Whether late-interaction scores are divided by the number of query embeddings."""
        return self.sentence_transformers.similarity_fn_name == "meanmaxsim"

    @property
    def pair_prompt(self) -> str:
        """The prompt of a cross-encoder, prepended to queries; a score template contains its instruction itself."""
        default, is_pair = self.prompts.default, self.kind.value == "sequence" and self.score_template is None
        return default.value if is_pair and default and self.sentence_transformers.messages is None else ""

    @property
    def default_task(self) -> Task:
        return self.plan.tasks[0]

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig(
            model=self.checkpoint.name,
            served_model_name=self.name,
            folder=self.checkpoint.folder,
            hf_config=_with_integer_labels(self.config),
            max_model_len=self.max_length.value,
            embedding_size=self.plan.matryoshka.full_size,
            dtype_name=self.dtype.value,
            head_dtype_name=self.head_dtype.value,
            pooling_plan=self.plan,
        )


def _with_integer_labels(config: HFConfig) -> HFConfig:
    """Return a config whose `id2label` has integer keys, as in Transformers; in JSON they are strings."""
    labels = config.get("id2label")
    if not isinstance(labels, Mapping) or not all(str(key).isdecimal() for key in labels):
        return config
    return HFConfig({**config.values, "id2label": {int(key): label for key, label in labels.items()}}, config.source)
