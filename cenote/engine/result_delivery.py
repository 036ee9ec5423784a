"""The answers to a batch go to those who wait for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set
from dataclasses import dataclass, field

from cenote.engine.sequence_group import Answered, Batch, Receiver, Rows
from cenote.errors import NumericalError
from cenote.pooling.pooler import Ask


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch has led to."""

    rows: dict[Ask, Rows]  # for each thing that was asked: of the sequences that ask it, in their order
    failed: Set[int] = field(default_factory=frozenset)  # the numbers of sequences whose answer is not finite


def deliver(batch: Batch, outcome: Outcome) -> None:
    first = batch.parts[0].lot
    alike = all(part.lot.receiver is first.receiver and part.lot.asks is first.asks for part in batch.parts)
    if alike and not outcome.failed:  # all for one caller, who gets the batch as it is
        rows = tuple(outcome.rows[ask] for ask in first.asks)
        _check_size(batch.size, *rows)
        first.receiver.receive([Answered(batch.strip, batch.indices, rows)])
    else:
        _deliver_parts(batch, outcome)


def _deliver_parts(batch: Batch, outcome: Outcome) -> None:
    """Part by part; a sequence whose answer is not finite gets an error, and its mates do not suffer."""
    answered: defaultdict[Receiver, list[Answered]] = defaultdict(list)
    handed_out: Counter[Ask] = Counter()
    start = 0  # the number of a part's first sequence
    for part in batch.parts:
        receiver, asks = part.lot.receiver, part.lot.asks
        rows = tuple(outcome.rows[ask].between(handed_out[ask], handed_out[ask] + part.size) for ask in asks)
        _check_size(part.size, *rows)
        handed_out.update(dict.fromkeys(asks, part.size))
        whole = Answered(batch.strip.between(start, start + part.size), part.indices, rows)
        if outcome.failed.isdisjoint(range(start, start + part.size)):
            answered[receiver].append(whole)
        else:
            for place, index in enumerate(part.indices.tolist()):
                if start + place in outcome.failed:
                    receiver.fail(index, NumericalError("the model's answer to this input is not finite"))
                else:
                    answered[receiver].append(whole.between(place, place + 1))
        start += part.size
    for receiver, several in answered.items():
        receiver.receive(several)


def _check_size(size: int, *rows: Rows) -> None:
    for each in rows:
        if len(each) != size:
            raise ValueError(f"{size} sequences ran, and {len(each)} answers came back")
