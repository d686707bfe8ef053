"""The graphs known by name, a look at one's own, and graphs built from texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphveil._errors import InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli._notices import notices
from graphveil.cli._output import Result, bar, check_file, track, write_text
from graphveil.cli._runs import is_cataloged

# What is stated of edges; whether each has its reverse is read off private edges.
_DIRECTION = {
    True: "directed",
    False: "undirected",
    None: "as they are; direction not stated (--directed, --undirected)",
}


@click.group()
def data() -> None:
    """The graphs known by name, and your own."""


@data.command("list")
@option.as_json
def list_(as_json: bool) -> None:
    """Every data set of the catalog: its task, its size, and what a record is."""
    from graphveil.data.catalog import CATALOG

    entries = [_describe(name) for name in CATALOG]
    result = Result("Graphs known by name", data=entries)
    result.table(
        ["name", "task", "nodes", "features", "classes", "a record", "edges", "split"],
        [
            [
                entry["name"],
                entry["task"] or "varies",
                _records(entry),
                _size(entry["num_features"]),
                _size(entry["num_classes"]),
                entry["unit"].partition(" ")[2],
                entry["edges"],
                entry["split"],
            ]
            for entry in entries
        ],
    )
    result.note(
        "A record is a node, or a whole graph where there are many. graphveil data show NAME gives "
        "licence and citation. Wherever a name goes, a path to files of your own goes too."
    )
    result.show(as_json)


@data.command("show")
@click.argument("source", metavar="NAME|PATH")
@option.root
@option.classes
@option.directed
@option.schema
@option.typed
@option.as_json
@notices()
def show_(source: str, root: str | None, as_json: bool, **stated: Any) -> None:
    """What is known of a data set, or what is in the files at a path.

    For a name nothing is loaded, and for a store its manifest alone. For another path the files are
    read and counted; the counts are for whoever holds the data, since most of them are private.
    """
    from graphveil.data.store_format import is_store, is_unfinished

    if is_cataloged(source):
        content = _describe(source)
    elif is_store(source) or is_unfinished(source):
        content = _describe_store(source)
    else:
        content = _count(source, root, stated)
    result = Result(source)
    for key, value in content.items():
        # What is public names classes and columns.
        hidden = key in ("class_names", "columns", "schema") or value == ""
        label = None if hidden else key.removeprefix("num_").replace("_", " ")
        result.add(key, value, label, _owner_text if key == "owner" else _text)
    result.show(as_json)


@data.command("store")
@click.argument("source")
@click.option("--out", required=True, help="The directory of the store.")
@click.option("--nodes", metavar="QUERY", help="For duckdb:///FILE: the query of the nodes.")
@click.option("--edges", metavar="QUERY", help="For duckdb:///FILE: the query of the edges.")
@option.root
@option.schema
@option.classes
@option.directed
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    help="The type of features.",
)
@click.option("--memory", default="4GiB", help="What a pass may hold, beyond the program itself.")
@option.force
@option.as_json
@notices()
def store_(source: str, out: str, force: bool, as_json: bool, **stated: Any) -> None:
    """Build a store of SOURCE, for graphs that are larger than memory.

    SOURCE is a name of the catalog, a folder with tables (nodes.csv or .parquet, or parts
    nodes-1.parquet and so on, and edges likewise), a folder with raw files of OGB, a .npz or .pt,
    or a file of DuckDB with two queries. The passes over nodes and edges take time in proportion
    to them. A build that was interrupted goes on when the command is given again.

    \b
    graphveil data store ward/ --out ward.store
    graphveil data store duckdb:///ward.db --out ward.store --memory 8GiB \\
        --nodes "SELECT * FROM patients" --edges "SELECT source, target FROM contacts"
    """
    import time

    from graphveil.data.store_building import build_store

    started = time.monotonic()
    manifest = build_store(source, out, force=force, track=track, **stated)
    seconds = time.monotonic() - started
    result = Result(f"A store of {source}")
    _add_sizes(result, manifest)
    result.add("loops_removed", manifest.loops_removed)
    result.add("repeats_removed", manifest.repeats_removed)
    result.add("seconds", round(seconds, 3), "time", "{:,.1f} s".format)
    result.add("peak_memory", _peak_memory(), "peak memory", _bytes)
    result.add("out", out, "written to")
    result.add("public", list(manifest.public), "public")
    result.show(as_json)


@data.command("verify")
@click.argument("store")
@option.as_json
def verify_(store: str, as_json: bool) -> None:
    """Read all arrays of STORE, and compare them with the checksums of its manifest."""
    from graphveil.data.store_format import verify

    manifest = verify(store, track)
    result = Result(f"The store {store}")
    _add_sizes(result, manifest)
    result.add("verified", list(manifest.arrays), "as the manifest says")
    result.show(as_json)


@data.command("schema")
@click.argument("path")
@click.option("--out", help="The file to write. Default: schema.toml beside the tables.")
@option.force
@option.as_json
def schema_(path: str, out: str | None, force: bool, as_json: bool) -> None:
    """A first schema for the tables at PATH, by the names of their columns alone.

    What is public of each column is for you to fill in: values are private, and are not read.

    \b
    graphveil data schema ward/
    graphveil train late-graph --data ward/ --epsilon 2 --out runs/ward
    """
    from graphveil.data.table_names import draft_for, place_for

    out = out or str(place_for(path))
    check_file(out, force)
    text, columns = draft_for(path)
    write_text(out, text)
    result = Result(f"A first schema for {path}")
    result.add("columns", columns)
    result.row("columns", f"{len(columns):,}")
    result.add("to_fill_in", text.count('"?"') - 1, "to fill in", "{:,}".format)
    result.add("out", out, "written to")
    result.note('Fill in every "?", and correct what is marked "# ?"; training refuses the rest.')
    result.show(as_json)


@data.command("export")
@click.argument("name")
@click.option(
    "--out", required=True, help="The folder to write: nodes.csv, edges.csv, schema.toml."
)
@option.force
@option.as_json
def export(name: str, out: str, force: bool, as_json: bool) -> None:
    """The synthetic hospital as the tables that somebody would have.

    \b
    graphveil data export hospital --out ward
    graphveil train late-graph --data ward --epsilon 2 --out runs/ward
    """
    from graphveil.data.hospital import write

    nodes, edges = write(name, out, force=force)
    result = Result(f"{name}, as tables")
    result.add("num_nodes", nodes, "patients", _text)
    result.add("num_edges", edges, "contacts", _text)
    result.add("out", out, "written to")
    result.note("Synthetic: nobody in it is real.")
    result.show(as_json)


@data.group()
def build() -> None:
    """Graphs from texts, and public vocabularies for them."""


@build.command("text")
@click.option("--documents", required=True, help="A csv or csv.gz: one row for each document.")
@click.option("--links", required=True, help="A csv or csv.gz with source and target.")
@click.option(
    "--features",
    required=True,
    type=click.Choice(["hash", "tfidf", "vectors", "sentence"]),
    help="What becomes of a text; each row depends on its own text alone.",
)
@click.option("--out", required=True, help="A .npz, a .pt, or a folder (which keeps the ids).")
@click.option("--id", default="id", help="The column of ids.")
@click.option("--text", default="text", help="The column of texts.")
@click.option("--label", help="The column of labels; else the column label, if there is one.")
@option.classes
@click.option("--min-class", type=int, default=0, help="Leave out smaller classes.")
@click.option("--dimension", type=int, help="Columns, for hash; 1024 unless told.")
@click.option("--vocabulary", help="Words and frequencies of public text, for tfidf.")
@click.option("--vectors", help="A file of fastText (.vec) or GloVe, for vectors.")
@click.option("--model", help="For sentence: a folder, an installed package, or a cached name.")
@click.option("--directed", is_flag=True, help="Links go from source to target only.")
@option.force
@option.as_json
@notices()
def build_text(
    documents: str, links: str, features: str, out: str, force: bool, as_json: bool, **columns: Any
) -> None:
    """A graph from a table of documents and a table of links.

    \b
    graphveil data build text --documents docs.csv --links links.csv \\
        --features hash --label topic --classes pets,money --out docs.npz
    graphveil train late-graph --data docs.npz --epsilon 8 --out runs/docs
    """
    from graphveil.data import text
    from graphveil.graph.checks import public_of
    from graphveil.graph.targets import is_labelled

    text.check_place(out, force)
    kinds = [columns.pop(name) for name in ("dimension", "vocabulary", "vectors", "model")]
    chosen = text.Features(features, *kinds)
    graph = text.build(documents, links, chosen, track=bar("reading documents"), **columns)
    text.write(out, graph, force=force)
    labelled = "y" in graph
    result = Result(f"A graph of {documents}", features=features)
    result.add("num_nodes", len(graph.x), "documents", _text)
    result.add("num_features", graph.x.shape[1], "features", lambda n: f"{n:,} ({features})")
    result.add("num_classes", graph.num_classes if labelled else None, "classes", _text)
    result.add("class_names", getattr(graph, "class_names", None))
    result.add("labelled", int(is_labelled(graph.y).sum()) if labelled else None, "labelled", _text)
    result.add("messages", graph.edge_index.shape[1], "messages", _text)
    result.add("out", out, "written to")
    result.add("public", list(public_of(graph)), "public")
    result.show(as_json)


@build.command("vocabulary")
@click.option("--documents", required=True, help="A csv or csv.gz of public documents.")
@click.option("--out", required=True, help="The csv to write.")
@click.option("--id", default="id", help="The column of ids.")
@click.option("--text", default="text", help="The column of texts.")
@click.option("--dimension", type=int, default=1024, help="How many words.")
@option.force
@option.as_json
def build_vocabulary(
    documents: str, out: str, dimension: int, force: bool, as_json: bool, **columns: str
) -> None:
    """The most frequent words of PUBLIC documents, for the features tfidf.

    Never from private documents: the result is read off them, and whoever uses it counts as
    telling it to everybody.

    \b
    graphveil data build vocabulary --documents public.csv --out words.csv
    """
    from graphveil.data import text, text_features

    check_file(out, force)
    texts = text.read_documents(documents, **columns)["text"]
    vocabulary = text_features.make_vocabulary(texts, dimension)
    text_features.write_vocabulary(out, vocabulary)
    result = Result(f"A vocabulary of {documents}")
    result.add("words", len(vocabulary.words), "words", _text)
    result.add("documents", vocabulary.documents, "documents", _text)
    result.add("out", out, "written to")
    note = f"The words, their frequencies, and with them {documents}, count as public from now on."
    result.add("public", [note], "public")
    result.show(as_json)


def _describe(source: str) -> dict[str, Any]:
    from graphveil.data.catalog import entry_of

    if (entry := entry_of(source)) is None:
        raise InvalidInputError(f"There is no data set {source!r}; see graphveil data list.")
    return {
        "name": entry.name,
        "title": entry.title,
        "task": entry.task,
        "record": entry.record,
        "unit": entry.unit,
        "num_graphs": entry.num_graphs,
        "num_nodes": entry.num_nodes,
        "mean_nodes": _mean(entry.num_nodes, entry.num_graphs),
        "num_features": entry.num_features,
        "num_classes": entry.num_classes or None,
        "target_features": entry.target_features,
        "edges": "directed" if entry.directed else "undirected",
        "split": "own" if entry.own_split else "none",
        "licence": entry.licence,
        "citation": entry.citation,
        "url": entry.url,
        "note": entry.note,
    }


def _count(source: str, root: str | None, stated: dict[str, Any]) -> dict[str, Any]:
    from graphveil.data import load
    from graphveil.graph import checks
    from graphveil.graph.targets import is_labelled

    graph = load(source, root, **stated)
    if "links" in graph:
        return _count_links(source, graph)
    task = checks.task_of(graph)
    classes = None if graph.y is None or task == "regression" else checks.num_classes_of(graph)
    graphs = checks.num_records(graph) if checks.record_of(graph) == "graph" else None
    names = checks.columns_of(graph)
    return {
        "path": str(Path(source)),
        "record": checks.record_of(graph),
        "num_graphs": graphs,
        "num_nodes": len(graph.x),
        "mean_nodes": _mean(len(graph.x), graphs),
        "num_features": graph.x.shape[1],
        "task": task,
        "num_classes": classes,
        "class_names": getattr(graph, "class_names", None),
        "columns": None if names is None else list(names),
        "messages": graph.edge_index.shape[1],
        "edges": _DIRECTION[checks.directed_of(graph)],
        "labelled": None if graph.y is None else int(is_labelled(graph.y).sum()),
        "owner": _owners_of(graph),
        "public": list(checks.public_of(graph)),
        **{
            name.removesuffix("_mask"): int(graph[name].sum())
            for name in checks.MASKS
            if name in graph
        },
    }


def _owners_of(graph: Any) -> dict[str, Any] | None:
    """What an owner of records is called, how many there are, and the column that says so."""
    from graphveil.graph.owners import count_owners, owner_name_of
    from graphveil.runs.source import schema_of

    if (count := count_owners(graph)) is None:
        return None
    schema = schema_of(graph)
    column = None if schema is None else schema.owner
    return {"name": owner_name_of(graph), "count": count, "column": column}


def _count_links(source: str, links: Any) -> dict[str, Any]:
    """What is in the data of a link task."""
    from graphveil.graph import checks

    targets = links.target_x if "target_x" in links else links.x
    return {
        "path": str(Path(source)),
        "record": "link",
        "relation": links.relation,
        "num_sources": len(links.x),
        "source_features": links.x.shape[1],
        "num_targets": len(targets),
        "target_features": targets.shape[1],
        "num_links": links.links.shape[1],
        "edges": _DIRECTION[checks.directed_of(links)],
        "public": list(getattr(links, "public", ())),
    }


def _describe_store(source: str) -> dict[str, Any]:
    """What the manifest of a store says."""
    from graphveil.data.store_format import Manifest

    manifest = Manifest.read(source)
    features = manifest.arrays["x_values" if manifest.sparse else "x"].dtype
    return {
        "path": str(Path(source)),
        "record": "node",
        "num_nodes": manifest.num_nodes,
        "num_features": manifest.num_features,
        "features": f"{'sparse rows of ' if manifest.sparse else ''}{features}",
        "task": manifest.task or ("multiclass" if "y" in manifest.arrays else None),
        "num_classes": manifest.num_classes,
        "class_names": manifest.class_names,
        "columns": manifest.columns,
        "schema": manifest.schema,
        "messages": manifest.num_messages,
        "edges": _DIRECTION[manifest.directed],
        "bytes": manifest.nbytes,
        "arrays": list(manifest.arrays),
        "source": manifest.source,
        "loops_removed": manifest.loops_removed,
        "repeats_removed": manifest.repeats_removed,
        "public": [*manifest.public, *manifest.unprotected],
    }


def _add_sizes(result: Result, manifest: Any) -> None:
    """How large a store is."""
    result.add("num_nodes", manifest.num_nodes, "nodes", _text)
    result.add("num_features", manifest.num_features, "features", _text)
    result.add("messages", manifest.num_messages, "messages", _text)
    result.add("edges", _DIRECTION[manifest.directed], "edges")
    result.add("num_classes", manifest.num_classes, "classes", _text)
    result.add("bytes", manifest.nbytes, "size", _bytes)


def _peak_memory() -> int | None:
    """The most that this process ever held, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _bytes(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024  # type: ignore[assignment]
    return f"{size:,.1f} GiB"


def _mean(nodes: int | None, graphs: int | None) -> float | None:
    return None if nodes is None or graphs is None else round(nodes / graphs, 2)


def _records(entry: dict[str, Any]) -> str:
    if entry["record"] != "graph":
        return _size(entry["num_nodes"])
    return "graphs" if entry["num_graphs"] is None else f"{entry['num_graphs']:,} graphs"


def _size(value: int | None) -> str:
    return "varies" if value is None else f"{value:,}"


def _owner_text(owner: dict[str, Any]) -> str:
    column = "" if owner["column"] is None else f", by {owner['column']}"
    return f"{owner['name']} ({owner['count']:,}{column})"


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
