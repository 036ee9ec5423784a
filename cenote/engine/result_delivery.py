"""The answers to a batch go to those who wait for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set
from dataclasses import dataclass, field

from cenote.engine.sequence_group import GroupResult, RaggedRows, ResultReceiver, ScheduledBatch
from cenote.errors import NumericalError
from cenote.pooling.pooler import PoolingSpec


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """What a batch has led to."""

    rows: dict[PoolingSpec, RaggedRows]  # for each thing that was asked: of the sequences that ask it, in their order
    failed_indices: Set[int] = field(default_factory=frozenset)  # the numbers of sequences whose answer is not finite


def deliver_results(batch: ScheduledBatch, output: BatchOutput) -> None:
    first = batch.slices[0].group
    alike = all(part.group.receiver is first.receiver and part.group.specs is first.specs for part in batch.slices)
    if alike and not output.failed_indices:  # all for one caller, who gets the batch as it is
        rows = tuple(output.rows[ask] for ask in first.specs)
        _check_num_results(batch.num_seqs, *rows)
        first.receiver.receive([GroupResult(batch.inputs, batch.indices, rows)])
    else:
        _deliver_by_slice(batch, output)


def _deliver_by_slice(batch: ScheduledBatch, output: BatchOutput) -> None:
    """Part by part; a sequence whose answer is not finite gets an error, and its mates do not suffer."""
    answered: defaultdict[ResultReceiver, list[GroupResult]] = defaultdict(list)
    handed_out: Counter[PoolingSpec] = Counter()
    start = 0  # the number of a part's first sequence
    for part in batch.slices:
        receiver, asks = part.group.receiver, part.group.specs
        rows = tuple(output.rows[ask].slice(handed_out[ask], handed_out[ask] + part.num_seqs) for ask in asks)
        _check_num_results(part.num_seqs, *rows)
        handed_out.update(dict.fromkeys(asks, part.num_seqs))
        whole = GroupResult(batch.inputs.slice(start, start + part.num_seqs), part.indices, rows)
        if output.failed_indices.isdisjoint(range(start, start + part.num_seqs)):
            answered[receiver].append(whole)
        else:
            for place, index in enumerate(part.indices.tolist()):
                if start + place in output.failed_indices:
                    receiver.fail(index, NumericalError("the model's answer to this input is not finite"))
                else:
                    answered[receiver].append(whole.slice(place, place + 1))
        start += part.num_seqs
    for receiver, several in answered.items():
        receiver.receive(several)


def _check_num_results(num_seqs: int, *rows: RaggedRows) -> None:
    for each in rows:
        if len(each) != num_seqs:
            raise ValueError(f"{num_seqs} sequences ran, and {len(each)} answers came back")
