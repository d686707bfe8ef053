"""Documents that form a graph: from a table of texts and a table of links to a PyG ``Data``.

    data = build("docs.csv", "links.csv", features="hash", label="section")

``docs.csv`` (or ``.csv.gz``) has a row for each document: its id (any text), its text, perhaps its
label. ``links.csv`` has ``source`` and ``target``. There are four kinds of features, and **each
document's row is a function of that document and of public values alone**, to the last bit:

========  ==============================================================================
hash      words counted in columns that a fixed hash gives them: nothing is learnt
tfidf     words of a public vocabulary, weighted by public document frequencies
vectors   the mean of the words' static vectors, from a file (fastText, GloVe)
sentence  the mean of a language model's token states (sentence-transformers, BERT)
========  ==============================================================================

A vocabulary, or document frequencies, learnt from the private documents would be a release: a word
that one person alone writes gets a column, and everybody's weights move with one document. That is
refused; see :func:`graphveil.data.text_features.tfidf`.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._files import partial_name, write_file
from graphveil._inputs import at_home
from graphveil._progress import Progress
from graphveil.data._tables import edge_ends, read_texts, unique_index, writing
from graphveil.data.class_list import parse_classes
from graphveil.data.classes import put
from graphveil.data.files import PUBLIC
from graphveil.data.text_features import Features, read_vocabulary, refuse_own_counts
from graphveil.graph.checks import check
from graphveil.graph.public_lines import LEFT_OUT


def build(
    documents: str | Path,
    links: str | Path,
    features: str | Features = "hash",
    *,
    id: str = "id",
    text: str = "text",
    label: str | None = None,
    classes: Any = None,
    min_class: int = 0,
    directed: bool = False,
    track: Progress | None = None,
) -> Data:
    """The graph of a table of documents and a table of links.

    ``id``, ``text`` and ``label`` name columns; without ``label``, a column called label is taken
    if there is one. ``features`` is a :class:`Features`, or the word ``hash``. Each link goes both
    ways unless ``directed``. A document without text has a row of zeros, one without label
    ``y=-1``. Labels are names, sorted, as numbers if all are; names are kept only if
    ``classes`` states them to be public, see :mod:`graphveil.data.classes`. The result has ``x``,
    ``edge_index``, ``ids``, ``directed`` and, with labels, ``y``, ``num_classes`` and perhaps
    ``class_names``. Its ``public`` says what it rests on; certificates repeat that.

    ``min_class`` leaves out the documents of classes with fewer documents than that, and their
    links. Unlabelled documents stay.

    *Guarantee*: none is needed; building is not releasing. Each row of ``x`` depends on its own
    document alone: withholding a document changes no other row. Public by assumption: the ids,
    what is stated of classes, who is unlabelled, and with ``min_class`` which classes are that
    large and who is in the others, read off the labels; and every file besides the two tables.
    """
    statement = parse_classes(classes)
    how = Features(features) if isinstance(features, str) else features
    _validate.integer("min_class", min_class, "[0, 1e9]")
    vocabulary = None if how.vocabulary is None else read_vocabulary(how.vocabulary)
    table = read_documents(documents, id=id, text=text, label=label)
    ends = read_texts(links, ("source", "target"), filled=("source", "target"))
    edge_index = torch.from_numpy(edge_ends(Path(documents), table["id"], Path(links), ends))
    if vocabulary is not None:
        refuse_own_counts(table["text"], vocabulary)
    if min_class:
        keep = _large_classes(Path(documents), table, min_class)
        edge_index = _among(edge_index, keep)
        table = table[keep].reset_index(drop=True)
    if not directed:
        edge_index = to_undirected(edge_index, num_nodes=len(table))
    x = how.rows(table["text"].tolist(), vocabulary, track)
    data = Data(x=torch.from_numpy(x), edge_index=edge_index, ids=table["id"].tolist())
    data.directed, left_out = (
        directed,
        [LEFT_OUT.format(min_class, "document")] if min_class else [],
    )
    data.public = ["the documents' ids, in their order", *left_out, *how.public]
    if left_out:
        data.unprotected = left_out
    if "label" in table and table["label"].notna().any():
        put(data, Path(documents), table["label"], statement, "documents", numbers=False)
    return check(data, labels=False, masks=False)


def read_documents(
    path: str | Path, *, id: str = "id", text: str = "text", label: str | None = None
) -> pd.DataFrame:
    """The columns so named of a table, as ``id``, ``text`` and, if there is one, ``label``.

    *Guarantee*: none; reading is not releasing.
    """
    named = {"id": id, "text": text} | ({} if label is None else {"label": label})
    if len(set(named.values())) < len(named):
        raise InvalidInputError(
            "The columns of ids, texts and labels must be different. Got "
            f"{', '.join(map(repr, named.values()))} instead; a label among the features predicts "
            "itself."
        )
    table = read_texts(path, tuple(named.values()), filled=(id,))
    if table.empty:
        raise InvalidInputError(f"{path} has no rows; give each document one.")
    rule, way_out = "unlike all other ids", "keep one row for each document"
    unique_index(Path(path), table[id], rule, way_out)
    if "label" in table and "label" not in named.values():
        named.setdefault("label", "label")
    documents = pd.DataFrame({name: table[column] for name, column in named.items()})
    return documents.assign(text=documents["text"].fillna(""))


def _large_classes(path: Path, table: pd.DataFrame, min_class: int) -> NDArray[np.bool_]:
    if "label" not in table:
        raise InvalidInputError(
            f"The 'min_class' parameter must go with a column of labels. Got {min_class} for "
            f"{path} without one instead; name the column."
        )
    sizes = table["label"].value_counts()
    large = sizes.index[sizes >= min_class]
    if len(large) == 0:
        raise InvalidInputError(
            f"The 'min_class' parameter must leave a class. Got {min_class} instead, and the "
            f"largest class of {path} has {int(sizes.max()) if len(sizes) else 0} documents."
        )
    return np.array(table["label"].isin(large) | table["label"].isna(), dtype=bool)


def _among(edge_index: torch.Tensor, keep: NDArray[np.bool_]) -> torch.Tensor:
    """The edges between kept nodes, numbered as what is left."""
    kept = torch.from_numpy(keep)
    number = torch.cumsum(kept, 0) - 1
    return number[edge_index[:, kept[edge_index].all(dim=0)]]


def write(path: str | Path, data: Data, *, force: bool = False) -> None:
    """Save a graph as :func:`graphveil.data.load` reads it: ``.npz``, ``.pt`` or two tables.

    A folder keeps the documents' ids, which predictions then carry; the other two are smaller. It
    is written whole or not at all, and over nothing unless ``force``.

    *Guarantee*: none. The file is as private as the documents are.
    """
    path = at_home(path)
    check_place(path, force)
    if path.suffix == "":
        _write_folder(path, data)
        return
    content = {name: data[name] for name in data.keys() if name != "ids"}  # noqa: SIM118
    buffer = io.BytesIO()
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in content.items()}
        np.savez_compressed(buffer, **arrays)
    else:
        torch.save(Data.from_dict(content), buffer)
    with writing(path):
        write_file(path, buffer.getvalue())


def check_place(path: str | Path, force: bool) -> None:
    """Refuse a place that cannot be written to, or is taken; before anything is spent on it."""
    path = at_home(path)
    if path.suffix not in (".npz", ".pt", ""):
        raise InvalidInputError(
            f"The 'out' parameter must end in .npz or .pt, or be a folder. Got {str(path)!r} "
            "instead; .npz is smallest."
        )
    if path.exists() and not force:
        raise InvalidInputError(
            f"{path} exists and is not written over; choose another name, or use --force."
        )
    tables = {"nodes.csv", "edges.csv", PUBLIC}
    other = path.is_file() if path.suffix == "" else path.is_dir()
    if other or (path.is_dir() and {file.name for file in path.iterdir()} - tables):
        raise InvalidInputError(
            f"{path} is something else and is not replaced, not even by force; choose another name."
        )
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(f"{path} cannot be written: its folder does not exist.")


def _write_folder(path: Path, data: Data) -> None:
    nodes = pd.DataFrame(data.x.numpy(), columns=[f"x{n}" for n in range(data.x.shape[1])])
    nodes.insert(0, "id", data.ids)
    if "y" in data:
        names = getattr(data, "class_names", None) or range(data.num_classes)
        names = np.array([*names, ""], dtype=object)
        nodes.insert(1, "label", names[data.y.numpy()])
    ends = data.edge_index.numpy()
    ids = np.array(data.ids, dtype=object)
    edges = pd.DataFrame({"source": ids[ends[0]], "target": ids[ends[1]]})
    with (
        writing(path),
        tempfile.TemporaryDirectory(prefix=partial_name(path.name), dir=path.parent) as work,
    ):
        new = Path(work) / "new"
        new.mkdir()
        nodes.to_csv(new / "nodes.csv", index=False, float_format="%.9g")
        edges.to_csv(new / "edges.csv", index=False)
        if "public" in data:
            (new / PUBLIC).write_text("".join(f"{line}\n" for line in data.public))
        if path.exists():
            path.rename(Path(work) / "old")
        new.rename(path)
