"""Embeddings as tables: Parquet with who may see it in the file, or CSV without."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError
from graphveil.export.files import write_whole

if TYPE_CHECKING:
    from graphveil.methods.embedding import Embedding

ENDINGS = (".parquet", ".csv")
METADATA = "graphveil"  # the key of a Parquet file's metadata, whose value is JSON


def check_table(path: str | Path) -> None:
    """Refuse a name that no table can have here; before anything is read."""
    ending = Path(path).suffix
    if ending not in ENDINGS:
        raise InvalidInputError(
            f"A table of embeddings must end in .parquet or .csv. Got {str(path)!r} instead."
        )
    if ending == ".parquet" and find_spec("pyarrow") is None:
        raise InvalidInputError(
            "Parquet files need pyarrow, which is not installed: pip install 'graphveil[data]', or "
            "write a .csv."
        )


def write_embedding(
    embedding: Embedding,
    path: str | Path,
    *,
    ids: Sequence[str] | None = None,
    about: dict[str, Any] | None = None,
) -> list[str]:
    """Write ``id`` and ``e0``, ``e1``, ... as a table, and return the names of the columns.

    Without ``ids`` records are numbered from 0. A Parquet file has under ``graphveil``, as JSON,
    who may see it, what it costs, and what ``about`` adds. A private one is its owner's alone.

    *Guarantee*: that of the embedding; the file goes to whom ``seen_by`` names.
    """
    path = Path(path)
    check_table(path)
    rows = embedding.rows.numpy()
    names = [str(number) for number in range(len(rows))] if ids is None else list(ids)
    if len(names) != len(rows):
        raise InvalidInputError(
            f"The 'ids' parameter must have one id for each of {len(rows)} records. Got "
            f"{len(names)} instead."
        )
    columns = ["id", *(f"e{place}" for place in range(rows.shape[1]))]
    statement = {**(about or {}), **_describe(embedding)}
    make = _make_parquet if path.suffix == ".parquet" else _make_csv
    write_whole(path, make(columns, names, rows, statement), private=embedding.private)
    return columns


def _describe(embedding: Embedding) -> dict[str, str]:
    return {
        "of": embedding.of,
        "mode": embedding.mode,
        "seen_by": embedding.seen_by,
        "costs": embedding.costs,
    }


def _make_parquet(
    columns: Sequence[str], ids: Sequence[str], rows: Any, statement: dict[str, Any]
) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = [pa.array(ids, pa.string()), *(pa.array(column) for column in rows.T)]
    table = pa.table(arrays, names=list(columns))
    table = table.replace_schema_metadata({METADATA: json.dumps(statement)})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _make_csv(
    columns: Sequence[str], ids: Sequence[str], rows: Any, statement: dict[str, Any]
) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([name, *row] for name, row in zip(ids, rows.tolist(), strict=True))
    return text.getvalue().encode(errors="backslashreplace")
