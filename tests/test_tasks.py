"""Every task is in the places that the page on contributing names."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cenote.api.sparse_response import TaskAnswers
from cenote.engine.offline_requests import MISSING_TASK_MESSAGE
from cenote.loading.pooling_settings import TASKS_BY_KIND
from cenote.protocol.params import TASKS
from cenote.ray.row_task import OPTIONS, SCHEMAS

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_known_wherever_tasks_are_listed(task: str) -> None:
    answers = {field.name for field in msgspec.structs.fields(TaskAnswers)}
    assert task in answers
    assert task in OPTIONS and task in SCHEMAS
    assert any(task in tasks for tasks in TASKS_BY_KIND.values())
    assert f'pooling_task="{task}"' in MISSING_TASK_MESSAGE
    assert f"`{task}`" in (DOCS / "offline.md").read_text()
