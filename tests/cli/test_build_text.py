"""Texts and links from the command line to a trained model; leaks and bad input are one line."""

import json

import pytest

from graphveil.data import load

PETS = ["a cat sleeps", "the dog and the cat", "a dog barks", "cats purr"]
MONEY = ["rates rise", "the bank lends", "a bank fails", "shares fall"]


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """Two tables in the working directory."""
    monkeypatch.chdir(tmp_path)
    lines = [f"p{n},{text},pets" for n, text in enumerate(PETS * 3)]
    lines += [f"m{n},{text},money" for n, text in enumerate(MONEY * 3)]
    (tmp_path / "docs.csv").write_text("\n".join(["id,text,topic", *lines, "z,one more,zoo"]))
    links = [f"{kind}{n},{kind}{n + 1}" for kind in "pm" for n in range(11)]
    (tmp_path / "links.csv").write_text("\n".join(["source,target", *links]))
    return tmp_path


TABLES = "data build text --documents docs.csv --links links.csv --label topic"
BUILD = f"{TABLES} --classes money,pets,zoo"
LARGE = f"{TABLES} --classes public --min-class 2"


@pytest.mark.parametrize("out", ["graph.npz", "graph.pt", "graph"])
def test_from_texts_to_a_trained_model(docs, answer, out):
    built = answer(f"{LARGE} --features hash --dimension 16 --out {out}")
    assert (built["num_nodes"], built["num_features"], built["num_classes"]) == (24, 16, 2)
    assert (built["class_names"], built["messages"]) == (["money", "pets"], 44)
    assert any("at least 2 documents" in line for line in built["public"])
    trained = answer(f"train mlp --data {out} --classes public --set steps=2 --out run")
    assert trained["data"] == out


@pytest.mark.parametrize("split", ["transductive", "inductive"])
@pytest.mark.parametrize("out", ["graph.npz", "graph.pt", "graph"])
def test_a_certificate_repeats_what_a_graph_rests_on(docs, answer, run, out, split):
    (docs / "public.csv").write_text("id,text\n1,the cat and the bank\n2,a dog\n")
    answer("data build vocabulary --documents public.csv --dimension 4 --out words.csv")
    built = answer(f"{LARGE} --features tfidf --vocabulary words.csv --out {out}")
    assert sum("vocabulary" in line for line in built["public"]) == 1
    quick = "--epsilon 8 --delta 1e-3 --set steps=2 --set sample_rate=1"
    answer(f"train dp-gnn --data {out} --classes public {quick} --split {split} --out run")
    certificate = json.loads((docs / "run" / "certificate.json").read_text())
    # A table names its columns, which arrays do not.
    public = [line for line in certificate["public"] if "names of the feature" not in line]
    assert public[-len(built["public"]) :] == built["public"]
    assert built["public"][0] in (docs / "run" / "certificate.txt").read_text().replace("\n", " ")
    assert run("report run --out page.html")[0] == 0  # which makes the certificate anew
    assert run(f"predict run --data {out} --mode noisy --epsilon 1")[0] == 0  # and this more
    again = json.loads((docs / "run" / "certificate.json").read_text())
    assert again["public"] == certificate["public"]


def test_what_a_graph_rests_on_must_be_lines(docs, answer, refused):
    answer(f"{LARGE} --features hash --out graph")
    (docs / "graph" / "public.txt").write_text("fine\n" + 600 * "x")
    assert "'public'" in refused("train mlp --data graph --classes public --set steps=2 --out run")
    (docs / "graph" / "public.txt").write_bytes(b"\xff\xfe")
    assert "public.txt" in refused(
        "train mlp --data graph --classes public --set steps=2 --out run"
    )


def test_a_vocabulary_leak_is_refused_with_the_safe_choices(docs, refused, answer, run):
    message = refused(f"{BUILD} --features tfidf --out graph.npz", code=3)
    for word in ("release", "public text", "hash", "vectors", "sentence"):
        assert word in message
    assert not (docs / "graph.npz").exists()

    made = answer("data build vocabulary --documents docs.csv --out own.csv")
    assert "count as public" in made["public"][0]
    assert made["documents"] == 25
    message = refused(f"{BUILD} --features tfidf --vocabulary own.csv --out graph.npz", code=3)
    assert "these very documents" in message

    (docs / "public.csv").write_text("id,text\n1,the cat and the bank\n2,a dog\n")
    answer("data build vocabulary --documents public.csv --dimension 4 --out words.csv")
    code, out, err = run(f"{BUILD} --features tfidf --vocabulary words.csv --out graph.npz")
    assert (code, err) == (0, "")
    assert "must not have been made from these documents" in " ".join(out.split())
    assert load("graph.npz", classes=3).x.shape == (25, 4)


def test_nothing_is_written_over(docs, refused, answer):
    answer(f"{BUILD} --features hash --out graph.npz")
    before = (docs / "graph.npz").read_bytes()
    refused(f"{BUILD} --features hash --dimension 8 --out graph.npz")
    assert (docs / "graph.npz").read_bytes() == before
    answer(f"{BUILD} --features hash --dimension 8 --out graph.npz --force")
    assert load("graph.npz", classes=3).x.shape == (25, 8)
    answer("data build vocabulary --documents docs.csv --out words.csv")
    refused("data build vocabulary --documents docs.csv --out words.csv")


def test_bad_input_is_one_line_and_writes_nothing(docs, refused):
    before = sorted(each.name for each in docs.iterdir())
    for options in (
        "--features hash --out graph.txt",
        "--features hash --out absent/graph.npz",
        "--features bow --out graph.npz",
        "--features hash --text body --out graph.npz",
        "--features hash --text topic --out graph.npz",
        "--features hash --min-class 99 --out graph.npz",
        "--features hash --model m --out graph.npz",
        "--features vectors --out graph.npz",
        "--features vectors --vectors absent.vec --out graph.npz",
        "--features sentence --out graph.npz",
        "--features sentence --model nobody/none --out graph.npz",
        "--features tfidf --vocabulary absent.csv --out graph.npz",
    ):
        refused(f"{BUILD} {options}")
    assert sorted(each.name for each in docs.iterdir()) == before


def test_directed_links_and_word_vectors(docs, answer):
    (docs / "some.vec").write_text("cat 1 0\nbank 0 1\n")
    built = answer(f"{BUILD} --features vectors --vectors some.vec --directed --out graph.npz")
    assert built["messages"] == 22
    assert load("graph.npz", classes=3).x[:2].tolist() == [[1, 0], [1, 0]]


def test_the_answer_for_people_is_a_table(docs, run):
    code, out, _ = run(f"{BUILD} --features hash --out graph.npz")
    assert code == 0
    assert "1,024 (hash)" in out
    with pytest.raises(json.JSONDecodeError):
        json.loads(out)
