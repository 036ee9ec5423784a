"""Named entities: parity with Transformers' pipeline, label schemes, windows and invalid requests."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from cenote import LLM
from cenote.config.pooler import PoolerConfig
from cenote.engine.tasks.entity_spans import LabelScheme, TokenDecoder, TokenSpan, drop_overlaps, find_entities
from cenote.errors import BadRequest, Unsupported
from cenote.inputs.tokenizer import CHUNK_CHARS, Tokenizer
from cenote.protocol.params import AggregationStrategy
from cenote.protocol.results import Entity
from tests.engine.tasks.sentences import SENTENCES
from tests.tiny import TEXTS, randomize, tiny_bert, tiny_bert_classifier, tiny_bert_token_classifier

STRATEGIES: tuple[AggregationStrategy, ...] = ("none", "simple", "first", "average", "max")
NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SHARED = Path(__file__).parents[3] / ".." / "shared" / "tokenizers"


@dataclass(frozen=True)
class TokenizerKind:
    """A tokenizer, and the model family that is used with it."""

    tokenizer: tokenizers.Tokenizer
    family: str
    special: dict[str, str]

    def save(self, folder: Path, *, max_length: int = 128, **changes: Any) -> transformers.Pipeline:
        """Save a tiny model to a folder and return a pipeline with it."""
        config = getattr(transformers, f"{self.family}Config")(
            vocab_size=self.tokenizer.get_vocab_size(),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=130,
            **{"id2label": dict(enumerate(NAMES)), "label2id": {name: row for row, name in enumerate(NAMES)}} | changes,
        )
        model = getattr(transformers, f"{self.family}ForTokenClassification")(config).eval().requires_grad_(False)
        randomize(model)
        model.get_input_embeddings().weight.mul_(5.0)  # so that labels depend on tokens more than on context
        model.classifier.bias.zero_()
        model.save_pretrained(folder)
        self.tokenizer.save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **self.special}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        return transformers.pipeline("token-classification", model=model, tokenizer=tokenizer)  # type: ignore[call-overload,no-any-return]


BERT = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
ROBERTA = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def train_tokenizer(tokenizer: tokenizers.Tokenizer, trainer: Any, special: Sequence[str]) -> tokenizers.Tokenizer:
    tokenizer.train_from_iterator([*SENTENCES[:3], *TEXTS] * 3, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=[special[0], "$A", special[1]], special_tokens=ids)
    return tokenizer


def make_wordpiece(*, lower_case: bool = True) -> TokenizerKind:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=130, special_tokens=list(BERT.values()), show_progress=False)
    return TokenizerKind(train_tokenizer(tokenizer, trainer, ("[CLS]", "[SEP]")), "Bert", BERT)


def make_byte_bpe(*, trim: bool = True) -> TokenizerKind:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[call-arg]
        vocab_size=330,
        special_tokens=list(ROBERTA.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained = train_tokenizer(tokenizer, trainer, ("<s>", "</s>"))
    ends = [(token, trained.token_to_id(token)) for token in ("</s>", "<s>")]
    trained.post_processor = processors.RobertaProcessing(*ends, trim_offsets=trim, add_prefix_space=False)
    return TokenizerKind(trained, "Roberta", ROBERTA)


def make_sentencepiece() -> TokenizerKind:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(  # type: ignore[call-arg]
        vocab_size=150, special_tokens=list(ROBERTA.values()), unk_token="<unk>", show_progress=False
    )
    return TokenizerKind(train_tokenizer(tokenizer, trainer, ("<s>", "</s>")), "XLMRoberta", ROBERTA)


def load_real(name: str, family: str, special: dict[str, str]) -> TokenizerKind:
    file = SHARED / name / "tokenizer.json"
    if not file.exists():
        pytest.skip(f"the tokenizer {name} is not in ../shared/tokenizers")
    return TokenizerKind(tokenizers.Tokenizer.from_file(str(file)), family, special)


TOKENIZER_KINDS: dict[str, Callable[[], TokenizerKind]] = {
    "word pieces": make_wordpiece,
    "word pieces with capitals": lambda: make_wordpiece(lower_case=False),
    "byte pairs": make_byte_bpe,
    "byte pairs with their spaces": lambda: make_byte_bpe(trim=False),
    "sentence pieces": make_sentencepiece,
    "real roberta": lambda: load_real("roberta-base", "Roberta", ROBERTA),
    "real sentence pieces": lambda: load_real("deberta-v3", "Bert", BERT),
}


def open_llm(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", **options)


def find_entities_with(llm: LLM, texts: str | Sequence[str], **options: Any) -> list[list[Entity]]:
    return [output.outputs.entities for output in llm.entities(texts, use_tqdm=False, **options)]


def run_pipeline(pipeline: Any, texts: Sequence[str], **options: Any) -> list[list[dict[str, Any]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that word boundaries are a heuristic for this tokenizer
        return [pipeline(text, **options) for text in texts]


def assert_same(ours: Sequence[Sequence[Entity]], theirs: Sequence[Sequence[dict[str, Any]]]) -> None:
    for entities, expected in zip(ours, theirs, strict=True):
        without_scores = [{key: value for key, value in item.items() if key != "score"} for item in expected]
        dicts = [entity.as_dict() for entity in entities]
        assert [{key: item[key] for key in item if key not in ("score", "text")} for item in dicts] == without_scores
        scores = [float(item["score"]) for item in expected]
        assert [entity.score for entity in entities] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("name", TOKENIZER_KINDS)
def test_every_strategy_finds_the_same_entities_as_the_pipeline(name: str, tmp_path: Path) -> None:
    pipeline = TOKENIZER_KINDS[name]().save(tmp_path)

    with open_llm(tmp_path) as llm:
        for strategy in STRATEGIES:
            theirs = run_pipeline(pipeline, SENTENCES, aggregation_strategy=strategy)
            ours = find_entities_with(llm, SENTENCES, aggregation_strategy=strategy)
            assert_same(ours, theirs)
            assert sum(map(len, theirs)) > 10
            for text, entities in zip(SENTENCES, ours, strict=True):
                assert all(entity.text == text[entity.start : entity.end] for entity in entities)


def test_labels_can_be_ignored_or_not(tmp_path: Path) -> None:
    pipeline = make_wordpiece().save(tmp_path)

    with open_llm(tmp_path) as llm:
        for ignored in ([], ["PER"], ["O", "LOC"], ["B-PER"]):
            for strategy in ("none", "simple", "average"):
                theirs = run_pipeline(pipeline, SENTENCES, aggregation_strategy=strategy, ignore_labels=ignored)
                assert_same(
                    find_entities_with(llm, SENTENCES, aggregation_strategy=strategy, ignore_labels=ignored), theirs
                )


@pytest.mark.parametrize("make", [make_wordpiece, make_byte_bpe])
@pytest.mark.parametrize("stride", [0, 1, 7])
def test_a_long_text_is_split_into_windows_as_in_the_pipeline(
    make: Callable[[], TokenizerKind], stride: int, tmp_path: Path
) -> None:
    pipeline = make().save(tmp_path, max_length=20)
    texts = [" ".join(SENTENCES[:2]), SENTENCES[0], "a", " ".join(TEXTS)]

    with open_llm(tmp_path) as llm:
        for strategy in ("simple", "first", "average", "max"):
            theirs = run_pipeline(pipeline, texts, aggregation_strategy=strategy, stride=stride)
            outputs = llm.entities(texts, aggregation_strategy=strategy, stride=stride, use_tqdm=False)
            assert_same([output.outputs.entities for output in outputs], theirs)

    assert not any(output.outputs.truncated for output in outputs)
    assert outputs[0].num_prompt_tokens == outputs[0].num_input_tokens > 40
    assert theirs[0][-1]["start"] > 60


@pytest.mark.parametrize("num_words", [17, 18, 19, 36, 37, 50])
def test_windows_cover_a_text_of_any_length(num_words: int, tmp_path: Path) -> None:
    pipeline = make_wordpiece().save(tmp_path, max_length=20)  # 18 words and two special tokens
    text = " ".join(["the"] * num_words)

    with open_llm(tmp_path) as llm:
        for stride in (0, 5, 17):
            options: dict[str, Any] = {"aggregation_strategy": "simple", "ignore_labels": [], "stride": stride}
            assert_same(find_entities_with(llm, text, **options), run_pipeline(pipeline, [text], **options))


def test_without_stride_a_long_text_is_truncated_and_reported_as_truncated(tmp_path: Path) -> None:
    pipeline = make_wordpiece().save(tmp_path, max_length=20)
    texts = ["the cat", " ".join(SENTENCES), "the cat " * 200_000]

    with open_llm(tmp_path) as llm:
        outputs = llm.entities(texts, use_tqdm=False)

    theirs = run_pipeline(pipeline, [text[:1000] for text in texts], aggregation_strategy="simple")
    assert_same([output.outputs.entities for output in outputs], theirs)
    assert [output.outputs.truncated for output in outputs] == [False, True, True]
    assert outputs[1].num_prompt_tokens == 20 < outputs[1].num_input_tokens


def test_truncation_side_and_length_are_respected(tmp_path: Path) -> None:
    make_wordpiece().save(tmp_path)
    text = "Berlin " * 100_000 + "the cat is in the city"
    kwargs: dict[str, Any] = {"truncation_side": "left", "truncate_prompt_tokens": 8}

    with open_llm(tmp_path) as llm:
        (output,) = llm.entities(
            text, aggregation_strategy="none", ignore_labels=[], tokenization_kwargs=kwargs, use_tqdm=False
        )

    assert [entity.text for entity in output.outputs.entities] == ["the", "cat", "is", "in", "the", "city"]
    assert [entity.index for entity in output.outputs.entities] == [1, 2, 3, 4, 5, 6]
    assert output.outputs.entities[-1].end == len(text)
    assert output.outputs.truncated


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_text_has_no_entities(text: str, tmp_path: Path) -> None:
    make_wordpiece().save(tmp_path)

    with open_llm(tmp_path) as llm:
        assert find_entities_with(llm, text, ignore_labels=[]) == [[]]
        assert find_entities_with(llm, [text], tokenization_kwargs={"add_special_tokens": False}, stride=3) == [[]]


def test_labels_without_names_get_the_names_of_transformers(tmp_path: Path) -> None:
    tiny_bert_token_classifier(tmp_path, num_labels=2)

    with open_llm(tmp_path) as llm:
        groups = {entity.entity_group for entities in find_entities_with(llm, TEXTS) for entity in entities}

    assert groups and groups <= {"LABEL_0", "LABEL_1"}


# label schemes


def make_row(names: Sequence[str], name: str, score: float = 0.9) -> list[float]:
    rest = (1.0 - score) / (len(names) - 1)
    return [score if label == name else rest for label in names]


def merge_tags(
    names: Sequence[str], tags: Sequence[str], strategy: AggregationStrategy = "simple"
) -> list[tuple[str, str]]:
    """Return the entities of a text with one letter per tag, separated by spaces."""
    starts = 2 * np.arange(len(tags))
    decoder = TokenDecoder(
        convert_id_to_token="abcdefghijklmnopqrstuvwxyz".__getitem__,
        convert_tokens_to_string="".join,
        token_lengths=None,
        unk_token_id=-1,
    )
    text = " ".join(map(decoder.convert_id_to_token, range(len(tags))))
    tokens = TokenSpan(text, np.arange(len(tags)), starts, starts + 1, first_index=0, decoder=decoder)
    rows = np.array([make_row(names, tag) for tag in tags]).reshape(-1, len(names))
    entities = find_entities(tokens, rows, LabelScheme(names), strategy, ["O"])
    return [(entity.label, entity.word) for entity in entities]


def merge_by_hand(tags: Sequence[str], *, begin: str, inside: str, end: str, single: str) -> list[tuple[str, str]]:
    """Merge tags one by one: a simple implementation to compare with."""
    entities: list[tuple[str, str]] = []
    is_open = False
    for letter, tag in zip("abcdefghijklmnopqrstuvwxyz", tags, strict=False):
        prefix, _, name = tag.partition("-")
        if tag == "O":
            is_open = False
            continue
        is_continuation = is_open and entities[-1][0] == name and prefix in (inside, end)
        if is_continuation:
            entities[-1] = (name, entities[-1][1] + letter)
        else:
            entities.append((name, letter))
        is_open = prefix not in (end, single)
    return entities


@pytest.mark.parametrize(("begin", "inside", "end", "single"), ["BIES", "BILU", "BMES", "BMEW"])
def test_label_schemes_with_end_prefixes_close_entities(begin: str, inside: str, end: str, single: str) -> None:
    prefixes = {"begin": begin, "inside": inside, "end": end, "single": single}
    names = ["O", *(f"{prefix}-{name}" for prefix in prefixes.values() for name in ("PER", "LOC"))]
    generator = np.random.default_rng(7)

    for _ in range(300):
        tags = [names[row] for row in generator.integers(len(names), size=generator.integers(1, 12))]
        assert merge_tags(names, tags) == merge_by_hand(tags, **prefixes)


def test_a_token_after_an_end_prefix_starts_a_new_entity() -> None:
    names = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]

    assert merge_tags(names, ["B-PER", "I-PER", "E-PER", "B-PER", "E-PER"]) == [("PER", "abc"), ("PER", "de")]
    assert merge_tags(names, ["S-PER", "S-PER", "O", "S-PER"]) == [("PER", "a"), ("PER", "b"), ("PER", "d")]
    assert merge_tags(names, ["B-PER", "E-PER", "I-PER", "I-PER"]) == [("PER", "ab"), ("PER", "cd")]
    assert merge_tags(names, ["E-PER", "E-PER"]) == [("PER", "a"), ("PER", "b")]


def test_labels_of_two_letters_have_no_prefix() -> None:
    # in IOB1 an entity starts with B only directly after another one, in IOB2 always
    assert merge_tags(NAMES, ["I-PER", "I-PER", "B-PER", "I-PER", "I-LOC"]) == [
        ("PER", "ab"),
        ("PER", "cd"),
        ("LOC", "e"),
    ]
    assert merge_tags(NAMES, ["B-PER", "B-PER", "O", "I-LOC", "O"]) == [("PER", "a"), ("PER", "b"), ("LOC", "d")]


def test_labels_without_prefixes_are_merged_by_name() -> None:
    names = ["O", "S-Bahn", "E-Mail", "date-of-birth", "N"]

    assert merge_tags(names, ["S-Bahn", "S-Bahn", "E-Mail", "E-Mail", "N", "O", "N"]) == [
        ("S-Bahn", "ab"), ("E-Mail", "cd"), ("N", "e"), ("N", "g")
    ]  # fmt: skip
    assert merge_tags(names, ["date-of-birth", "date-of-birth"]) == [("date-of-birth", "ab")]


def test_of_overlapping_entities_the_longest_is_kept() -> None:
    def entity(start: int, end: int, score: float = 0.5) -> Entity:
        return Entity(label="PER", score=score, word="", start=start, end=end, text="")

    assert drop_overlaps([entity(9, 12), entity(0, 3), entity(2, 8), entity(3, 4)]) == [entity(2, 8), entity(9, 12)]
    assert drop_overlaps([entity(0, 3), entity(1, 4, 0.6), entity(3, 5)]) == [entity(1, 4, 0.6)]
    assert drop_overlaps([entity(0, 3), entity(3, 6)]) == [entity(0, 3), entity(3, 6)]
    assert drop_overlaps([]) == []


PRIVATE = ("account_number", "address", "date", "email", "person", "phone", "url", "secret")


def test_entities_can_be_used_to_redact_private_data(tmp_path: Path) -> None:
    """33 labels: O, and begin, inside, end and single of eight entity groups."""
    names = ["O", *(f"{prefix}-private_{group}" for group in PRIVATE for prefix in "BIES")]
    kind = make_byte_bpe(trim=False)
    id2label = dict(enumerate(names))
    kind.save(tmp_path, id2label=id2label, label2id={name: row for row, name in id2label.items()})

    with open_llm(tmp_path) as llm:
        assert len(llm.labels or ()) == 33
        rows = [np.asarray(output.outputs.data) for output in llm.reward(SENTENCES, use_tqdm=False)]
        ours = find_entities_with(llm, SENTENCES)

    for text, scores, entities in zip(SENTENCES, rows, ours, strict=True):
        tokens = kind.tokenizer.encode(text, add_special_tokens=False)
        tags = [names[row] for row in scores[1:-1].argmax(-1)]
        spans = spans_by_hand(tags, tokens.offsets)
        assert [(entity.label, entity.start, entity.end) for entity in entities] == spans
    redacted = redact(SENTENCES[0], ours[0])
    assert ours[0]
    assert all(f"[{entity.label}]" in redacted for entity in ours[0])


def spans_by_hand(tags: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[tuple[str, int, int]]:
    spans: list[tuple[str, int, int]] = []
    previous = "O"
    for tag, (start, end) in zip(tags, offsets, strict=True):
        is_continuation = tag[0] in "IE" and previous[0] in "BI" and tag[2:] == previous[2:]
        if is_continuation:
            spans[-1] = (spans[-1][0], spans[-1][1], end)
        elif tag != "O":
            spans.append((tag[2:], start, end))
        previous = tag
    return spans


def redact(text: str, entities: Sequence[Entity]) -> str:
    for entity in reversed(entities):
        text = f"{text[: entity.start]}[{entity.label}]{text[entity.end :]}"
    return text


# character offsets


@pytest.mark.parametrize("make", [make_wordpiece, make_byte_bpe, make_sentencepiece])
def test_encoding_with_offsets_gives_the_same_tokens(
    make: Callable[[], TokenizerKind], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(make().tokenizer)
    text = " ".join(SENTENCES)
    whole = tokenizer.encode_with_offsets([text, "", *SENTENCES])

    for encoding, ids in zip(whole, tokenizer.encode([text, "", *SENTENCES]), strict=True):
        assert encoding.token_ids.tolist() == ids.tolist()
        assert len(encoding.starts) == len(encoding.ends) == len(ids)
    monkeypatch.setattr("cenote.inputs.tokenizer.CHUNK_CHARS", 60)
    (chunked,) = tokenizer.encode_with_offsets([text])
    assert chunked.token_ids.tolist() == tokenizer.encode([text])[0].tolist()
    assert chunked.ends.tolist() == whole[0].ends.tolist()
    assert np.abs(chunked.starts - whole[0].starts).max() <= 1  # the space at a chunk boundary
    assert CHUNK_CHARS > len(text) > 60


def test_offsets_refer_to_the_original_text_even_where_lower_case_is_longer() -> None:
    tokenizer = Tokenizer(make_byte_bpe().tokenizer, lower_case=True)
    text = "İİ Berlin İ cat"
    assert len(text.lower()) == len(text) + 3

    (located,) = tokenizer.encode_with_offsets([text])

    parts = [text[start:end] for start, end in zip(located.starts, located.ends, strict=True)]
    letters = [part for part in parts if part not in ("İ", "")]  # İ is in the parts once per byte
    assert "".join(letters) == "Berlincat"
    assert (located.starts < located.ends).all() and located.ends[-1] == len(text)


# invalid requests


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    make_wordpiece().save(tmp_path, max_length=20)
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"aggregation_strategy": "best"}, "invalid aggregation_strategy 'best'; expected one of: none, simple"),
        ({"stride": 18}, "from 0 to 17"),
        ({"stride": -1}, "from 0 to 17"),
        ({"stride": 2, "aggregation_strategy": "none"}, "tokens would be returned twice"),
        ({"ignore_labels": "O"}, "ignore_labels must be a list"),
        ({"tokenization_kwargs": {"truncate_prompt_tokens": 2}}, "must be greater than the 2 special tokens"),
        ({"tokenization_kwargs": {"truncate_prompt_tokens": 21}}, "cannot be greater than max_model_len"),
    ]

    with open_llm(tmp_path) as llm:
        for options, message in refusals:
            with pytest.raises(BadRequest, match=message):
                find_entities_with(llm, "the cat", **options)
        for texts, message in (([[7, 8]], "requires texts, not token ids"), (["a", "\ud83d"], "not valid Unicode")):
            with pytest.raises(BadRequest, match=message) as caught:
                find_entities_with(llm, texts)  # type: ignore[arg-type]
            assert caught.value.index == len(texts) - 1
        with pytest.raises(BadRequest, match="at least one prompt"):
            find_entities_with(llm, [])


def test_models_without_token_labels_do_not_support_entities(tmp_path: Path) -> None:
    makers: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (tiny_bert, {}),
        (tiny_bert_classifier, {}),
        (tiny_bert_token_classifier, {"pooler_config": PoolerConfig(pooling_type="STEP", step_tag_id=7)}),
    ]
    for number, (make, options) in enumerate(makers):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder)
        with open_llm(folder, **options) as llm, pytest.raises(Unsupported, match="does not support entities"):
            find_entities_with(llm, "the cat")
