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
from cenote.config.engine import PoolerConfig
from cenote.engine.tasks.entity_spans import Labels, Spelling, Tokens, find_entities, without_overlaps
from cenote.errors import BadRequest, Unsupported
from cenote.inputs.tokenizer import PIECE_CHARS, Tokenizer
from cenote.protocol.requests import Aggregation, Entity
from tests.tiny import TEXTS, randomize, tiny_bert, tiny_bert_classifier, tiny_bert_tagger

STRATEGIES: tuple[Aggregation, ...] = ("none", "simple", "first", "average", "max")
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
class Kind:
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


def trained(tokenizer: tokenizers.Tokenizer, trainer: Any, special: Sequence[str]) -> tokenizers.Tokenizer:
    tokenizer.train_from_iterator([*SENTENCES[:3], *TEXTS] * 3, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=[special[0], "$A", special[1]], special_tokens=ids)
    return tokenizer


def word_pieces(*, lower_case: bool = True) -> Kind:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=130, special_tokens=list(BERT.values()), show_progress=False)
    return Kind(trained(tokenizer, trainer, ("[CLS]", "[SEP]")), "Bert", BERT)


def byte_pairs(*, trim: bool = True) -> Kind:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[call-arg]
        vocab_size=330,
        special_tokens=list(ROBERTA.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made = trained(tokenizer, trainer, ("<s>", "</s>"))
    ends = [(token, made.token_to_id(token)) for token in ("</s>", "<s>")]
    made.post_processor = processors.RobertaProcessing(*ends, trim_offsets=trim, add_prefix_space=False)
    return Kind(made, "Roberta", ROBERTA)


def sentence_pieces() -> Kind:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(  # type: ignore[call-arg]
        vocab_size=150, special_tokens=list(ROBERTA.values()), unk_token="<unk>", show_progress=False
    )
    return Kind(trained(tokenizer, trainer, ("<s>", "</s>")), "XLMRoberta", ROBERTA)


def real(name: str, family: str, special: dict[str, str]) -> Kind:
    file = SHARED / name / "tokenizer.json"
    if not file.exists():
        pytest.skip(f"no real tokenizer {name} in a folder `shared/tokenizers` beside the project")
    return Kind(tokenizers.Tokenizer.from_file(str(file)), family, special)


KINDS: dict[str, Callable[[], Kind]] = {
    "word pieces": word_pieces,
    "word pieces with capitals": lambda: word_pieces(lower_case=False),
    "byte pairs": byte_pairs,
    "byte pairs with their spaces": lambda: byte_pairs(trim=False),
    "sentence pieces": sentence_pieces,
    "real roberta": lambda: real("roberta-base", "Roberta", ROBERTA),
    "real sentence pieces": lambda: real("deberta-v3", "Bert", BERT),
}


def opened(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", **options)


def found(llm: LLM, texts: str | Sequence[str], **options: Any) -> list[list[Entity]]:
    return [output.outputs.entities for output in llm.entities(texts, use_tqdm=False, **options)]


def expected(pipeline: Any, texts: Sequence[str], **options: Any) -> list[list[dict[str, Any]]]:
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


@pytest.mark.parametrize("name", KINDS)
def test_every_strategy_finds_what_the_pipeline_finds(name: str, tmp_path: Path) -> None:
    pipeline = KINDS[name]().save(tmp_path)

    with opened(tmp_path) as llm:
        for strategy in STRATEGIES:
            theirs = expected(pipeline, SENTENCES, aggregation_strategy=strategy)
            ours = found(llm, SENTENCES, aggregation_strategy=strategy)
            assert_same(ours, theirs)
            assert sum(map(len, theirs)) > 10
            for text, entities in zip(SENTENCES, ours, strict=True):
                assert all(each.text == text[each.start : each.end] for each in entities)


def test_labels_can_be_ignored_or_not(tmp_path: Path) -> None:
    pipeline = word_pieces().save(tmp_path)

    with opened(tmp_path) as llm:
        for ignored in ([], ["PER"], ["O", "LOC"], ["B-PER"]):
            for strategy in ("none", "simple", "average"):
                theirs = expected(pipeline, SENTENCES, aggregation_strategy=strategy, ignore_labels=ignored)
                assert_same(found(llm, SENTENCES, aggregation_strategy=strategy, ignore_labels=ignored), theirs)


@pytest.mark.parametrize("make", [word_pieces, byte_pairs])
@pytest.mark.parametrize("stride", [0, 1, 7])
def test_a_long_text_is_read_in_windows_as_the_pipeline_does(
    make: Callable[[], Kind], stride: int, tmp_path: Path
) -> None:
    pipeline = make().save(tmp_path, max_length=20)
    texts = [" ".join(SENTENCES[:2]), SENTENCES[0], "a", " ".join(TEXTS)]

    with opened(tmp_path) as llm:
        for strategy in ("simple", "first", "average", "max"):
            theirs = expected(pipeline, texts, aggregation_strategy=strategy, stride=stride)
            outputs = llm.entities(texts, aggregation_strategy=strategy, stride=stride, use_tqdm=False)
            assert_same([output.outputs.entities for output in outputs], theirs)

    assert not any(output.outputs.truncated for output in outputs)
    assert outputs[0].num_prompt_tokens == outputs[0].num_input_tokens > 40
    assert theirs[0][-1]["start"] > 60


@pytest.mark.parametrize("num_words", [17, 18, 19, 36, 37, 50])
def test_windows_cover_a_text_of_any_length(num_words: int, tmp_path: Path) -> None:
    pipeline = word_pieces().save(tmp_path, max_length=20)  # 18 words beside two special tokens
    text = " ".join(["the"] * num_words)

    with opened(tmp_path) as llm:
        for stride in (0, 5, 17):
            options: dict[str, Any] = {"aggregation_strategy": "simple", "ignore_labels": [], "stride": stride}
            assert_same(found(llm, text, **options), expected(pipeline, [text], **options))


def test_without_windows_a_long_text_is_cut_and_that_is_told(tmp_path: Path) -> None:
    pipeline = word_pieces().save(tmp_path, max_length=20)
    texts = ["the cat", " ".join(SENTENCES), "the cat " * 200_000]

    with opened(tmp_path) as llm:
        outputs = llm.entities(texts, use_tqdm=False)

    theirs = expected(pipeline, [text[:1000] for text in texts], aggregation_strategy="simple")
    assert_same([output.outputs.entities for output in outputs], theirs)
    assert [output.outputs.truncated for output in outputs] == [False, True, True]
    assert outputs[1].num_prompt_tokens == 20 < outputs[1].num_input_tokens


def test_the_side_and_the_length_of_the_cut_can_be_chosen(tmp_path: Path) -> None:
    word_pieces().save(tmp_path)
    text = "Berlin " * 100_000 + "the cat is in the city"
    last: dict[str, Any] = {"truncation_side": "left", "truncate_prompt_tokens": 8}

    with opened(tmp_path) as llm:
        (output,) = llm.entities(
            text, aggregation_strategy="none", ignore_labels=[], tokenization_kwargs=last, use_tqdm=False
        )

    assert [each.text for each in output.outputs.entities] == ["the", "cat", "is", "in", "the", "city"]
    assert [each.index for each in output.outputs.entities] == [1, 2, 3, 4, 5, 6]
    assert output.outputs.entities[-1].end == len(text)
    assert output.outputs.truncated


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_a_text_of_nothing_has_no_entities(text: str, tmp_path: Path) -> None:
    word_pieces().save(tmp_path)

    with opened(tmp_path) as llm:
        assert found(llm, text, ignore_labels=[]) == [[]]
        assert found(llm, [text], tokenization_kwargs={"add_special_tokens": False}, stride=3) == [[]]


def test_classes_without_names_have_those_of_transformers(tmp_path: Path) -> None:
    tiny_bert_tagger(tmp_path, num_labels=2)

    with opened(tmp_path) as llm:
        groups = {each.entity_group for entities in found(llm, TEXTS) for each in entities}

    assert groups and groups <= {"LABEL_0", "LABEL_1"}


# classes and words


def row_of(names: Sequence[str], name: str, score: float = 0.9) -> list[float]:
    rest = (1.0 - score) / (len(names) - 1)
    return [score if each == name else rest for each in names]


def merged(names: Sequence[str], tags: Sequence[str], strategy: Aggregation = "simple") -> list[tuple[str, str]]:
    """The entities of a text of one letter per tag, with a space after each."""
    places = 2 * np.arange(len(tags))
    spelling = Spelling(token="abcdefghijklmnopqrstuvwxyz".__getitem__, join="".join, lengths=None, unknown=-1)
    text = " ".join(map(spelling.token, range(len(tags))))
    tokens = Tokens(text, np.arange(len(tags)), places, places + 1, first=0, spelling=spelling)
    rows = np.array([row_of(names, tag) for tag in tags]).reshape(-1, len(names))
    entities = find_entities(tokens, rows, Labels(names), strategy, ["O"])
    return [(each.label, each.word) for each in entities]


def by_hand(tags: Sequence[str], *, begin: str, inside: str, end: str, single: str) -> list[tuple[str, str]]:
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
def test_schemes_that_mark_the_end_are_read_to_the_end(begin: str, inside: str, end: str, single: str) -> None:
    marks = {"begin": begin, "inside": inside, "end": end, "single": single}
    names = ["O", *(f"{mark}-{name}" for mark in marks.values() for name in ("PER", "LOC"))]
    generator = np.random.default_rng(7)

    for _ in range(300):
        tags = [names[row] for row in generator.integers(len(names), size=generator.integers(1, 12))]
        assert merged(names, tags) == by_hand(tags, **marks)


def test_an_end_is_followed_by_a_beginning_whatever_the_tag_says() -> None:
    names = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]

    assert merged(names, ["B-PER", "I-PER", "E-PER", "B-PER", "E-PER"]) == [("PER", "abc"), ("PER", "de")]
    assert merged(names, ["S-PER", "S-PER", "O", "S-PER"]) == [("PER", "a"), ("PER", "b"), ("PER", "d")]
    assert merged(names, ["B-PER", "E-PER", "I-PER", "I-PER"]) == [("PER", "ab"), ("PER", "cd")]
    assert merged(names, ["E-PER", "E-PER"]) == [("PER", "a"), ("PER", "b")]


def test_tags_of_two_letters_are_read_as_ever() -> None:
    # IOB1 begins with I where nothing touches, IOB2 with B
    assert merged(NAMES, ["I-PER", "I-PER", "B-PER", "I-PER", "I-LOC"]) == [("PER", "ab"), ("PER", "cd"), ("LOC", "e")]
    assert merged(NAMES, ["B-PER", "B-PER", "O", "I-LOC", "O"]) == [("PER", "a"), ("PER", "b"), ("LOC", "d")]


def test_classes_without_marks_are_merged_by_their_names() -> None:
    names = ["O", "S-Bahn", "E-Mail", "date-of-birth", "N"]

    assert merged(names, ["S-Bahn", "S-Bahn", "E-Mail", "E-Mail", "N", "O", "N"]) == [
        ("S-Bahn", "ab"), ("E-Mail", "cd"), ("N", "e"), ("N", "g")
    ]  # fmt: skip
    assert merged(names, ["date-of-birth", "date-of-birth"]) == [("date-of-birth", "ab")]


def test_of_entities_over_each_other_the_longest_stays() -> None:
    def entity(start: int, end: int, score: float = 0.5) -> Entity:
        return Entity(label="PER", score=score, word="", start=start, end=end, text="")

    assert without_overlaps([entity(9, 12), entity(0, 3), entity(2, 8), entity(3, 4)]) == [entity(2, 8), entity(9, 12)]
    assert without_overlaps([entity(0, 3), entity(1, 4, 0.6), entity(3, 5)]) == [entity(1, 4, 0.6)]
    assert without_overlaps([entity(0, 3), entity(3, 6)]) == [entity(0, 3), entity(3, 6)]
    assert without_overlaps([]) == []


PRIVATE = ("account_number", "address", "date", "email", "person", "phone", "url", "secret")


def test_what_is_private_can_be_taken_out(tmp_path: Path) -> None:
    """33 classes: O, and begin, inside, end and single of eight kinds."""
    names = ["O", *(f"{mark}-private_{kind}" for kind in PRIVATE for mark in "BIES")]
    kind = byte_pairs(trim=False)
    id2label = dict(enumerate(names))
    kind.save(tmp_path, id2label=id2label, label2id={name: row for row, name in id2label.items()})

    with opened(tmp_path) as llm:
        assert len(llm.labels or ()) == 33
        rows = [np.asarray(output.outputs.data) for output in llm.reward(SENTENCES, use_tqdm=False)]
        ours = found(llm, SENTENCES)

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


@pytest.mark.parametrize("make", [word_pieces, byte_pairs, sentence_pieces])
def test_tokens_are_located_as_they_are_encoded(make: Callable[[], Kind], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(make().tokenizer)
    text = " ".join(SENTENCES)
    whole = tokenizer.locate([text, "", *SENTENCES])

    for each, ids in zip(whole, tokenizer.encode([text, "", *SENTENCES]), strict=True):
        assert each.token_ids.tolist() == ids.tolist()
        assert len(each.starts) == len(each.ends) == len(ids)
    monkeypatch.setattr("cenote.inputs.tokenizer.PIECE_CHARS", 60)
    (pieces,) = tokenizer.locate([text])
    assert pieces.token_ids.tolist() == tokenizer.encode([text])[0].tolist()
    assert pieces.ends.tolist() == whole[0].ends.tolist()
    assert np.abs(pieces.starts - whole[0].starts).max() <= 1  # the space at a seam
    assert PIECE_CHARS > len(text) > 60


def test_places_are_those_of_the_text_as_it_was_sent_even_where_lower_case_is_longer() -> None:
    tokenizer = Tokenizer(byte_pairs().tokenizer, lower_case=True)
    text = "İİ Berlin İ cat"
    assert len(text.lower()) == len(text) + 3

    (located,) = tokenizer.locate([text])

    parts = [text[start:end] for start, end in zip(located.starts, located.ends, strict=True)]
    letters = [part for part in parts if part not in ("İ", "")]  # which comes once for every byte
    assert "".join(letters) == "Berlincat"
    assert (located.starts < located.ends).all() and located.ends[-1] == len(text)


# what is wrong


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    word_pieces().save(tmp_path, max_length=20)
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"aggregation_strategy": "best"}, "no aggregation strategy is called 'best'; there are: none, simple"),
        ({"stride": 18}, "from 0 to 17"),
        ({"stride": -1}, "from 0 to 17"),
        ({"stride": 2, "aggregation_strategy": "none"}, "single tokens would come twice"),
        ({"ignore_labels": "O"}, "ignore_labels is a list"),
        ({"tokenization_kwargs": {"truncate_prompt_tokens": 2}}, "no room for text beside 2 special tokens"),
        ({"tokenization_kwargs": {"truncate_prompt_tokens": 21}}, "cannot be greater than max_model_len"),
    ]

    with opened(tmp_path) as llm:
        for options, words in refusals:
            with pytest.raises(BadRequest, match=words):
                found(llm, "the cat", **options)
        for texts, words in (([[7, 8]], "give texts, not token ids"), (["a", "\ud83d"], "not valid Unicode")):
            with pytest.raises(BadRequest, match=words) as caught:
                found(llm, texts)  # type: ignore[arg-type]
            assert caught.value.index == len(texts) - 1
        with pytest.raises(BadRequest, match="at least one prompt"):
            found(llm, [])


def test_models_without_a_class_for_every_token_find_none(tmp_path: Path) -> None:
    makers: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (tiny_bert, {}),
        (tiny_bert_classifier, {}),
        (tiny_bert_tagger, {"pooler_config": PoolerConfig(pooling_type="STEP", step_tag_id=7)}),
    ]
    for number, (make, options) in enumerate(makers):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder)
        with opened(folder, **options) as llm, pytest.raises(Unsupported, match="no named class for every token"):
            found(llm, "the cat")
