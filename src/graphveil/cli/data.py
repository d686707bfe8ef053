"""The graphs known by name, a look at one's own, and graphs built from texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphveil.cli._notices import notices
from graphveil.cli._shared import (
    bar,
    classes_option,
    directed_option,
    force_option,
    json_option,
    root_option,
    show,
    show_table,
)

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
@json_option
def list_(as_json: bool) -> None:
    """Every data set of the catalog: its size, and what a record is."""
    from graphveil.data.catalog import CATALOG

    entries = [_described(name) for name in CATALOG]
    rows = [
        [
            entry["name"],
            _records(entry),
            _size(entry["num_features"]),
            _size(entry["num_classes"]),
            entry["unit"].partition(" ")[2],
            entry["edges"],
            entry["split"],
        ]
        for entry in entries
    ]
    columns = ["name", "nodes", "features", "classes", "a record", "edges", "split"]
    note = (
        "A record is a node, or a whole graph where there are many. graphveil data show NAME gives "
        "licence and citation. Wherever a name goes, a path to files of your own goes too."
    )
    show_table({"data": entries}, as_json, "Graphs known by name", columns, rows, [note])


@data.command("show")
@click.argument("source", metavar="NAME|PATH")
@root_option
@classes_option
@directed_option
@json_option
@notices()
def show_(
    source: str, root: str | None, classes: str | None, directed: bool | None, as_json: bool
) -> None:
    """What is known of a data set, or what is in the files at a path.

    For a name nothing is loaded. For a path the files are read and counted; the counts are for
    whoever holds the data, since most of them are private.
    """
    from graphveil.data.catalog import CATALOG

    name = source.partition(":")[0]
    if name in CATALOG:
        result = _described(name)
    else:
        result = _counted(source, root, classes, directed)
    rows = [
        (key.removeprefix("num_").replace("_", " "), _text(each))
        for key, value in result.items()
        if key not in ("class_names", "columns")  # what is public names them
        for each in (value if key == "public" else [value])
    ]
    show(result, as_json, source, [row for row in rows if row[1]])


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
@click.option("--id", "id_", default="id", show_default=True, help="The column of ids.")
@click.option("--text", "text_", default="text", show_default=True, help="The column of texts.")
@click.option("--label", help="The column of labels; else the column label, if there is one.")
@classes_option
@click.option("--min-class", type=int, default=0, help="Leave out smaller classes.")
@click.option("--dimension", type=int, help="Columns, for hash; 1024 unless told.")
@click.option("--vocabulary", help="Words and frequencies of public text, for tfidf.")
@click.option("--vectors", help="A file of fastText (.vec) or GloVe, for vectors.")
@click.option("--model", help="For sentence: a folder, an installed package, or a cached name.")
@click.option("--directed", is_flag=True, help="Links go from source to target only.")
@force_option
@json_option
@notices()
def build_text(
    documents: str,
    links: str,
    features: str,
    out: str,
    id_: str,
    text_: str,
    label: str | None,
    classes: str | None,
    min_class: int,
    dimension: int | None,
    vocabulary: str | None,
    vectors: str | None,
    model: str | None,
    directed: bool,
    force: bool,
    as_json: bool,
) -> None:
    """A graph from a table of documents and a table of links.

    \b
    graphveil data build text --documents docs.csv --links links.csv \\
        --features hash --label topic --classes pets,money --out docs.npz
    graphveil train late-graph --data docs.npz --epsilon 8 --out runs/docs
    """
    from graphveil.data import text
    from graphveil.graph.checks import public_of

    text.check_place(out, force)
    built = text.build(
        documents,
        links,
        text.Features(features, dimension, vocabulary, vectors, model),
        id=id_,
        text=text_,
        label=label,
        classes=classes,
        min_class=min_class,
        directed=directed,
        track=bar("reading documents"),
    )
    text.write(out, built, force=force)
    result = {
        "out": out,
        "features": features,
        "num_nodes": len(built.x),
        "num_features": built.x.shape[1],
        "num_classes": built.num_classes if "y" in built else None,
        "class_names": getattr(built, "class_names", None),
        "messages": built.edge_index.shape[1],
        "labelled": int((built.y >= 0).sum()) if "y" in built else None,
        "public": list(public_of(built)),
    }
    rows = [
        ("documents", _text(result["num_nodes"])),
        ("features", f"{result['num_features']:,} ({features})"),
        ("classes", _text(result["num_classes"])),
        ("labelled", _text(result["labelled"])),
        ("messages", _text(result["messages"])),
        ("written to", out),
        *(("public", each) for each in result["public"]),
    ]
    show(result, as_json, f"A graph of {documents}", [row for row in rows if row[1]])


@build.command("vocabulary")
@click.option("--documents", required=True, help="A csv or csv.gz of public documents.")
@click.option("--out", required=True, help="The csv to write.")
@click.option("--id", "id_", default="id", show_default=True, help="The column of ids.")
@click.option("--text", "text_", default="text", show_default=True, help="The column of texts.")
@click.option("--dimension", type=int, default=1024, show_default=True, help="How many words.")
@force_option
@json_option
def build_vocabulary(
    documents: str,
    out: str,
    id_: str,
    text_: str,
    dimension: int,
    force: bool,
    as_json: bool,
) -> None:
    """The most frequent words of PUBLIC documents, for the features tfidf.

    Never from private documents: the result is read off them, and whoever uses it counts as
    telling it to everybody.

    \b
    graphveil data build vocabulary --documents public.csv --out words.csv
    """
    from graphveil.cli.training import check_file
    from graphveil.data import text, text_features

    check_file(out, force)
    found = text_features.make_vocabulary(
        text.read_documents(documents, id=id_, text=text_)["text"], dimension
    )
    text_features.write_vocabulary(out, found)
    note = f"The words, their frequencies, and with them {documents}, count as public from now on."
    result = {
        "out": out,
        "words": len(found.words),
        "documents": found.documents,
        "public": [note],
    }
    rows = [
        ("words", _text(result["words"])),
        ("documents", _text(result["documents"])),
        ("written to", out),
        ("public", note),
    ]
    show(result, as_json, f"A vocabulary of {documents}", rows)


def _described(name: str) -> dict[str, Any]:
    from graphveil.data.catalog import CATALOG

    entry = CATALOG[name]
    return {
        "name": entry.name,
        "title": entry.title,
        "record": entry.record,
        "unit": entry.unit,
        "num_graphs": entry.num_graphs,
        "num_nodes": entry.num_nodes,
        "mean_nodes": _mean(entry.num_nodes, entry.num_graphs),
        "num_features": entry.num_features,
        "num_classes": entry.num_classes or None,
        "edges": "directed" if entry.directed else "undirected",
        "split": "own" if entry.own_split else "none",
        "licence": entry.licence,
        "citation": entry.citation,
        "url": entry.url,
        "note": entry.note,
    }


def _counted(
    source: str, root: str | None, classes: str | None, directed: bool | None
) -> dict[str, Any]:
    from graphveil.data import load
    from graphveil.graph.checks import (
        MASKS,
        columns_of,
        directed_of,
        num_classes_of,
        num_records,
        public_of,
        record_of,
    )

    found = load(source, root, classes=classes, directed=directed)
    labelled = None if found.y is None else int((found.y >= 0).sum())
    graphs = num_records(found) if record_of(found) == "graph" else None
    return {
        "path": str(Path(source)),
        "record": record_of(found),
        "num_graphs": graphs,
        "num_nodes": len(found.x),
        "mean_nodes": _mean(len(found.x), graphs),
        "num_features": found.x.shape[1],
        "num_classes": None if found.y is None else num_classes_of(found),
        "class_names": getattr(found, "class_names", None),
        "columns": None if (names := columns_of(found)) is None else list(names),
        "messages": found.edge_index.shape[1],
        "edges": _DIRECTION[directed_of(found)],
        "labelled": labelled,
        "public": list(public_of(found)),
        **{name.removesuffix("_mask"): int(found[name].sum()) for name in MASKS if name in found},
    }


def _mean(nodes: int | None, graphs: int | None) -> float | None:
    return None if nodes is None or graphs is None else round(nodes / graphs, 2)


def _records(entry: dict[str, Any]) -> str:
    if entry["record"] == "node":
        return _size(entry["num_nodes"])
    return "graphs" if entry["num_graphs"] is None else f"{entry['num_graphs']:,} graphs"


def _size(value: int | None) -> str:
    return "varies" if value is None else f"{value:,}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
