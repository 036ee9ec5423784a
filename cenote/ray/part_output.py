"""PartOutput: the folder of the parts of a job, written by several processes, each part by an atomic rename."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cenote.errors import BadRequest
from cenote.files.parquet_input import import_pyarrow
from cenote.files.partial_file import remove_path
from cenote.utils.durable_files import replace_durably, sync_file, sync_folder

FORMATS = ("parquet", "jsonl", "lance")


class PartOutput:
    """Parquet and JSON lines: one file per part. Lance: fragments, committed as one dataset when all are written."""

    def __init__(self, folder: str, format: str) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self.format = format
        if format == "lance":
            import_lance()
        # readers of datasets ignore names that begin with an underscore
        self.state_folder = self.folder.with_name(self.folder.name + ".part") if format == "lance" else self.folder
        self.manifest_path = self.state_folder / "_manifest.json"

    def is_done(self, number: int) -> bool:
        return self._part_path(number).exists() or self._is_committed()

    def has_files(self) -> bool:
        return any(folder.is_dir() and any(folder.iterdir()) for folder in (self.folder, self.state_folder))

    def remove(self) -> None:
        """Remove the results of an earlier job, and no other file."""
        if self.format == "lance":
            if (self.folder / "_versions").is_dir() or self.manifest_path.exists():
                remove_path(self.folder)
                remove_path(self.state_folder)
        elif self.manifest_path.exists():
            for path in self.folder.glob("*part-*"):
                path.unlink()
            self.manifest_path.unlink()

    def write_bytes(self, number: int, content: bytes) -> None:
        path = self._part_path(number)
        temporary = self._temporary_path(path)
        temporary.write_bytes(content)
        replace_durably(temporary, path)

    def write_table(self, number: int, columns: Mapping[str, Any]) -> None:
        pa, parquet = import_pyarrow()
        table = pa.table(dict(columns))
        if self.format == "lance":
            fragments = import_lance().fragment.write_fragments(table, str(self.folder), mode="append")
            state = {
                "fragments": [fragment.to_json() for fragment in fragments],
                "schema": table.schema.serialize().to_pybytes().hex(),
            }
            for file in (file for fragment in state["fragments"] for file in fragment["files"]):
                sync_file(self.folder / "data" / file["path"])
            sync_folder(self.folder / "data")
            self.write_bytes(number, json.dumps(state).encode())
            return
        path = self._part_path(number)
        temporary = self._temporary_path(path)
        parquet.write_table(table, temporary)
        replace_durably(temporary, path)

    def finish(self, num_parts: int) -> None:
        """Make the results visible; called when all parts are written, and again by a job that has nothing to do."""
        if self.format == "lance" and not self._is_committed():
            self._commit(num_parts)

    def _commit(self, num_parts: int) -> None:
        pa, _ = import_pyarrow()
        lance = import_lance()
        states = [json.loads(self._part_path(number).read_text()) for number in range(num_parts)]
        if not states:
            return
        fragments = [
            lance.FragmentMetadata.from_json(json.dumps(item)) for state in states for item in state["fragments"]
        ]
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(states[0]["schema"])))
        lance.LanceDataset.commit(str(self.folder), lance.LanceOperation.Overwrite(schema, fragments))
        for path in (self.folder / "_versions").iterdir():
            sync_file(path)
        sync_folder(self.folder / "_versions")
        self.write_bytes(num_parts, b"{}")
        replace_durably(self._part_path(num_parts), self.state_folder / "_committed.json")

    def _is_committed(self) -> bool:
        return self.format == "lance" and (self.state_folder / "_committed.json").exists()

    def _part_path(self, number: int) -> Path:
        suffix = "json" if self.format == "lance" else self.format
        return self.state_folder / f"part-{number:06d}.{suffix}"

    @staticmethod
    def _temporary_path(path: Path) -> Path:
        # an actor that was given up may still write the same part
        return path.with_name(f"_{path.name}.{os.getpid()}.tmp")


def import_lance() -> Any:
    try:
        import lance
        import lance.fragment
    except ImportError:
        raise BadRequest("the format lance needs pylance; pip install pylance, or use parquet") from None
    return lance
