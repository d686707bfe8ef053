"""The names of the columns of one's own tables, and a first schema by them; no cell is read."""

from __future__ import annotations

from pathlib import Path

from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil.data._tables import column_names, table_path
from graphveil.data.schema import FILE
from graphveil.data.schema_draft import draft, draft_types
from graphveil.data.typed_schema import is_typed_place, relation_names, type_names


def place_for(path: str | Path) -> Path:
    """Where the schema of the tables at ``path`` stands: beside them."""
    path = at_home(path)
    return (path if path.is_dir() else path.parent) / FILE


def draft_for(path: str | Path) -> tuple[str, list[str]]:
    """A first schema for the tables at ``path``, and the columns that it is about.

    ``path`` is a folder as :func:`graphveil.data.load` reads it, or a single table.

    *Guarantee*: none is needed; names of columns are public, and nothing else is read.
    """
    path = at_home(path)
    if not path.exists():
        raise InvalidInputError(f"There is no file or directory {path}; check the path.")
    if path.is_file():
        columns = column_names(path)
        return draft(columns), columns
    if is_typed_place(path):
        types = {name: column_names(table_path(path, f"nodes-{name}")) for name in type_names(path)}
        relations = {
            name: column_names(table_path(path, f"edges-{name}")) for name in relation_names(path)
        }
        return draft_types(types, relations), [n for columns in types.values() for n in columns]
    columns = column_names(table_path(path, "nodes"))
    has_graphs = any((path / f"graphs.{end}").exists() for end in ("csv", "parquet"))
    graphs = column_names(table_path(path, "graphs")) if has_graphs else []
    edges = column_names(table_path(path, "edges"))
    return draft(columns, of_graphs=graphs, of_edges=edges), columns
