"""Entities of texts: the same as Transformers' pipeline finds, and what it does not know."""

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
from tests.tiny import TEXTS, randomize, tiny_bert, tiny_bert_classifier, tiny_bert_token_classifier

STRATEGIES: tuple[AggregationStrategy, ...] = ("none", "simple", "first", "average", "max")
NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SHARED = Path(__file__).parents[1] / ".." / "shared" / "tokenizers"
SENTENCES = [
    "Angela Merkel met Emmanuel Macron in Berlin, near the Brandenburg Gate.",
    "El Niño wärmt Zürich und São Paulo; Émile zahlt 12,50€ im Café „Łódź“.",
    "café cafe\u0301 CAFÉ İstanbul straße STRASSE",
    "Ünal 😀 lives 👩‍👩‍👧 in 東京都 and Москва … 한국어 ελληνικά.",
    "two\nlines\twith   odd  spaces \u00a0 and\u200bnothing ",
    "Mail j.doe@example.com or call +49-30-901820, ok?",
    "a",
    "I",
]


@dataclass(frozen=True)
class TokenizerKind:
    """A tokenizer, and the family whose model reads it."""

    tokenizer: tokenizers.Tokenizer
    family: str
    special: dict[str, str]

    def save(self, folder: Path, *, max_length: int = 128, **changes: Any) -> transformers.Pipeline:
        """A tiny model in a folder, and the pipeline around it."""
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
        model.get_input_embeddings().weight.mul_(5.0)  # so that tokens differ more than their neighbourhoods
        model.classifier.bias.zero_()
        model.save_pretrained(folder)
        self.tokenizer.save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **self.special}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        return transformers.pipeline("token-classification", model=model, tokenizer=theirs)  # type: ignore[call-overload,no-any-return]


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
    made = train_tokenizer(tokenizer, trainer, ("<s>", "</s>"))
    ends = [(token, made.token_to_id(token)) for token in ("</s>", "<s>")]
    made.post_processor = processors.RobertaProcessing(*ends, trim_offsets=trim, add_prefix_space=False)
    return TokenizerKind(made, "Roberta", ROBERTA)


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
        pytest.skip(f"no real tokenizer {name} in a folder `shared/tokenizers` beside the project")
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
        warnings.simplefilter("ignore")  # it says that words are guessed where a vocabulary does not mark them
        return [pipeline(text, **options) for text in texts]


def assert_same(ours: Sequence[Sequence[Entity]], theirs: Sequence[Sequence[dict[str, Any]]]) -> None:
    for mine, reference in zip(ours, theirs, strict=True):
        rounded = [{key: value for key, value in each.items() if key != "score"} for each in reference]
        plain = [each.as_dict() for each in mine]
        assert [{key: each[key] for key in each if key not in ("score", "text")} for each in plain] == rounded
        scores = [float(each["score"]) for each in reference]
        assert [each.score for each in mine] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("name", TOKENIZER_KINDS)
def test_every_strategy_finds_what_the_pipeline_finds(name: str, tmp_path: Path) -> None:
    pipeline = TOKENIZER_KINDS[name]().save(tmp_path)

    with open_llm(tmp_path) as llm:
        for strategy in STRATEGIES:
            theirs = run_pipeline(pipeline, SENTENCES, aggregation_strategy=strategy)
            ours = find_entities_with(llm, SENTENCES, aggregation_strategy=strategy)
            assert_same(ours, theirs)
            assert sum(map(len, theirs)) > 10
            for text, entities in zip(SENTENCES, ours, strict=True):
                assert all(each.text == text[each.start : each.end] for each in entities)


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
def test_a_long_text_is_read_in_windows_as_the_pipeline_does(
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
    pipeline = make_wordpiece().save(tmp_path, max_length=20)  # 18 words beside two special tokens
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
    last: dict[str, Any] = {"truncation_side": "left", "truncate_prompt_tokens": 8}

    with open_llm(tmp_path) as llm:
        (output,) = llm.entities(
            text, aggregation_strategy="none", ignore_labels=[], tokenization_kwargs=last, use_tqdm=False
        )

    assert [each.text for each in output.outputs.entities] == ["the", "cat", "is", "in", "the", "city"]
    assert [each.index for each in output.outputs.entities] == [1, 2, 3, 4, 5, 6]
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
        groups = {each.entity_group for entities in find_entities_with(llm, TEXTS) for each in entities}

    assert groups and groups <= {"LABEL_0", "LABEL_1"}


# classes and words


def make_row(names: Sequence[str], name: str, score: float = 0.9) -> list[float]:
    rest = (1.0 - score) / (len(names) - 1)
    return [score if each == name else rest for each in names]


def merge_tags(
    names: Sequence[str], tags: Sequence[str], strategy: AggregationStrategy = "simple"
) -> list[tuple[str, str]]:
    """The entities of a text of one letter per tag, with a space after each."""
    places = 2 * np.arange(len(tags))
    spelling = TokenDecoder(
        convert_id_to_token="abcdefghijklmnopqrstuvwxyz".__getitem__,
        convert_tokens_to_string="".join,
        token_lengths=None,
        unk_token_id=-1,
    )
    text = " ".join(map(spelling.convert_id_to_token, range(len(tags))))
    tokens = TokenSpan(text, np.arange(len(tags)), places, places + 1, first_index=0, decoder=spelling)
    rows = np.array([make_row(names, tag) for tag in tags]).reshape(-1, len(names))
    entities = find_entities(tokens, rows, LabelScheme(names), strategy, ["O"])
    return [(each.label, each.word) for each in entities]


def merge_by_hand(tags: Sequence[str], *, begin: str, inside: str, end: str, single: str) -> list[tuple[str, str]]:
    """The same for tags of one letter and a class, one after the other with all that is open in view."""
    entities: list[tuple[str, str]] = []
    is_open = False
    for letter, tag in zip("abcdefghijklmnopqrstuvwxyz", tags, strict=False):
        mark, _, name = tag.partition("-")
        if tag == "O":
            is_open = False
            continue
        goes_on = is_open and entities[-1][0] == name and mark in (inside, end)
        if goes_on:
            entities[-1] = (name, entities[-1][1] + letter)
        else:
            entities.append((name, letter))
        is_open = mark not in (end, single)
    return entities


@pytest.mark.parametrize(("begin", "inside", "end", "single"), ["BIES", "BILU", "BMES", "BMEW"])
def test_label_schemes_with_end_prefixes_close_entities(begin: str, inside: str, end: str, single: str) -> None:
    marks = {"begin": begin, "inside": inside, "end": end, "single": single}
    names = ["O", *(f"{mark}-{name}" for mark in marks.values() for name in ("PER", "LOC"))]
    generator = np.random.default_rng(7)

    for _ in range(300):
        tags = [names[row] for row in generator.integers(len(names), size=generator.integers(1, 12))]
        assert merge_tags(names, tags) == merge_by_hand(tags, **marks)


def test_a_token_after_an_end_prefix_starts_a_new_entity() -> None:
    names = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]

    assert merge_tags(names, ["B-PER", "I-PER", "E-PER", "B-PER", "E-PER"]) == [("PER", "abc"), ("PER", "de")]
    assert merge_tags(names, ["S-PER", "S-PER", "O", "S-PER"]) == [("PER", "a"), ("PER", "b"), ("PER", "d")]
    assert merge_tags(names, ["B-PER", "E-PER", "I-PER", "I-PER"]) == [("PER", "ab"), ("PER", "cd")]
    assert merge_tags(names, ["E-PER", "E-PER"]) == [("PER", "a"), ("PER", "b")]


def test_labels_of_two_letters_have_no_prefix() -> None:
    # IOB1 begins with I where nothing touches, IOB2 with B
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
    """33 classes: O, and begin, inside, end and single of eight kinds."""
    names = ["O", *(f"{mark}-private_{kind}" for kind in PRIVATE for mark in "BIES")]
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
        places = spans_by_hand(tags, tokens.offsets)
        assert [(each.label, each.start, each.end) for each in entities] == places
    redacted = redact(SENTENCES[0], ours[0])
    assert ours[0]
    assert all(f"[{each.label}]" in redacted for each in ours[0])


def spans_by_hand(tags: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[tuple[str, int, int]]:
    spans: list[tuple[str, int, int]] = []
    previous = "O"
    for tag, (start, end) in zip(tags, offsets, strict=True):
        goes_on = tag[0] in "IE" and previous[0] in "BI" and tag[2:] == previous[2:]
        if goes_on:
            spans[-1] = (spans[-1][0], spans[-1][1], end)
        elif tag != "O":
            spans.append((tag[2:], start, end))
        previous = tag
    return spans


def redact(text: str, entities: Sequence[Entity]) -> str:
    for entity in reversed(entities):
        text = f"{text[: entity.start]}[{entity.label}]{text[entity.end :]}"
    return text


# places of tokens


@pytest.mark.parametrize("make", [make_wordpiece, make_byte_bpe, make_sentencepiece])
def test_encoding_with_offsets_gives_the_same_tokens(
    make: Callable[[], TokenizerKind], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(make().tokenizer)
    text = " ".join(SENTENCES)
    whole = tokenizer.encode_with_offsets([text, "", *SENTENCES])

    for each, ids in zip(whole, tokenizer.encode([text, "", *SENTENCES]), strict=True):
        assert each.token_ids.tolist() == ids.tolist()
        assert len(each.starts) == len(each.ends) == len(ids)
    monkeypatch.setattr("cenote.inputs.tokenizer.CHUNK_CHARS", 60)
    (pieces,) = tokenizer.encode_with_offsets([text])
    assert pieces.token_ids.tolist() == tokenizer.encode([text])[0].tolist()
    assert pieces.ends.tolist() == whole[0].ends.tolist()
    assert np.abs(pieces.starts - whole[0].starts).max() <= 1  # the space at a seam
    assert CHUNK_CHARS > len(text) > 60


def test_offsets_refer_to_the_original_text_even_where_lower_case_is_longer() -> None:
    tokenizer = Tokenizer(make_byte_bpe().tokenizer, lower_case=True)
    text = "İİ Berlin İ cat"
    assert len(text.lower()) == len(text) + 3

    (located,) = tokenizer.encode_with_offsets([text])

    parts = [text[start:end] for start, end in zip(located.starts, located.ends, strict=True)]
    letters = [part for part in parts if part not in ("İ", "")]  # which comes once for every byte
    assert "".join(letters) == "Berlincat"
    assert (located.starts < located.ends).all() and located.ends[-1] == len(text)


# what is wrong


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    make_wordpiece().save(tmp_path, max_length=20)
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"aggregation_strategy": "best"}, "no aggregation strategy is called 'best'; there are: none, simple"),
        ({"stride": 18}, "from 0 to 17"),
        ({"stride": -1}, "from 0 to 17"),
        ({"stride": 2, "aggregation_strategy": "none"}, "single tokens would come twice"),
        ({"ignore_labels": "O"}, "ignore_labels is a list"),
        ({"tokenization_kwargs": {"truncate_prompt_tokens": 2}}, "no room for text beside 2 special tokens"),
        ({"tokenization_kwargs": {"truncate_prompt_tokens": 21}}, "cannot be greater than max_model_len"),
    ]

    with open_llm(tmp_path) as llm:
        for options, words in refusals:
            with pytest.raises(BadRequest, match=words):
                find_entities_with(llm, "the cat", **options)
        for texts, words in (([[7, 8]], "give texts, not token ids"), (["a", "\ud83d"], "not valid Unicode")):
            with pytest.raises(BadRequest, match=words) as caught:
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
        with open_llm(folder, **options) as llm, pytest.raises(Unsupported, match="no named class for every token"):
            find_entities_with(llm, "the cat")
