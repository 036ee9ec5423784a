"""Deliver the results of a batch to the requests of its sequences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set
from dataclasses import dataclass, field

from cenote.engine.result_rows import GroupResult, RaggedRows
from cenote.engine.sequence_group import ResultReceiver, ScheduledBatch
from cenote.errors import NumericalError
from cenote.pooling.pooler import PoolingSpec


@dataclass(slots=True)
class BatchOutput:
    """The results of a batch, on the host."""

    rows: dict[PoolingSpec, RaggedRows]  # for each spec: of the sequences with that spec, in batch order
    failed_indices: Set[int] = field(default_factory=frozenset)  # sequences of the batch with NaN or infinity


def deliver_results(batch: ScheduledBatch, output: BatchOutput) -> None:
    first = batch.slices[0].group
    is_single = len(batch.slices) == 1 or all(
        item.group.receiver is first.receiver and item.group.specs is first.specs for item in batch.slices
    )
    if is_single and not output.failed_indices:  # one receiver and one list of specs: deliver without splitting
        rows = tuple([output.rows[spec] for spec in first.specs])  # a list: quicker than a generator of one item
        _check_num_results(batch.num_seqs, *rows)
        first.receiver.receive([GroupResult(batch.inputs, batch.indices, rows, batch.times)])
    else:
        _deliver_by_slice(batch, output)


def _deliver_by_slice(batch: ScheduledBatch, output: BatchOutput) -> None:
    """Deliver slice by slice; a sequence with NaN or infinity in its result fails alone."""
    results: defaultdict[ResultReceiver, list[GroupResult]] = defaultdict(list)
    num_delivered: Counter[PoolingSpec] = Counter()
    start = 0  # index in the batch of the slice's first sequence
    for item in batch.slices:
        receiver, specs, num_seqs = item.group.receiver, item.group.specs, item.num_seqs
        rows = tuple(output.rows[spec].slice(num_delivered[spec], num_delivered[spec] + num_seqs) for spec in specs)
        _check_num_results(num_seqs, *rows)
        num_delivered.update(dict.fromkeys(specs, num_seqs))
        result = GroupResult(batch.inputs.slice(start, start + num_seqs), item.indices, rows, batch.times)
        if output.failed_indices.isdisjoint(range(start, start + num_seqs)):
            results[receiver].append(result)
        else:
            for offset, index in enumerate(item.indices.tolist()):
                if start + offset in output.failed_indices:
                    error = NumericalError("the model output for this input contains NaN or infinity")
                    receiver.fail(index, error)
                else:
                    results[receiver].append(result.slice(offset, offset + 1))
        start += num_seqs
    for receiver, group_results in results.items():
        receiver.receive(group_results)


def _check_num_results(num_seqs: int, *rows: RaggedRows) -> None:
    for spec_rows in rows:
        if len(spec_rows) != num_seqs:
            raise ValueError(f"the executor returned {len(spec_rows)} results for {num_seqs} sequences")
