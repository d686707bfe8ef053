"""What a run takes as public: stated by the owner, listed on the certificate, and nothing else."""

import json
import re

import numpy as np
import pytest
from scipy import sparse
from scipy.io import savemat

from graphveil import runs
from graphveil.methods import METHODS, Facts
from graphveil.report import evidence

QUICK = "--epsilon 8 --set steps=3 --set sample_rate=1"


@pytest.fixture
def people(tmp_path):
    """Two tables of forty people; the column of labels, and the order of the columns, are given."""

    def call(name="people", label=lambda n: ["red", "blue"][n % 2], columns=("age", "posts")):
        folder = tmp_path / name
        folder.mkdir()
        rows = [
            {"id": f"p{n}", "label": label(n), "age": 20 + 3 * (n % 2), "posts": -(n % 5)}
            for n in range(40)
        ]
        header = ["id", "label", *columns]
        lines = [",".join(str(row.get(name, 1)) for name in header) for row in rows]
        (folder / "nodes.csv").write_text("\n".join([",".join(header), *lines]) + "\n")
        (folder / "edges.csv").write_text("source,target\np0,p2\np1,p3\n")
        return folder

    return call


def section(run, title):
    text = (run / "certificate.txt").read_text()
    return text.partition(f"{title}\n")[2].partition("\n\n")[0]


# --- names of classes -----------------------------------------------------------------------------


def test_a_column_of_secrets_is_published_nowhere(people, refused, tmp_path):
    folder, out = people(label=lambda n: f"hidden-{n}"), tmp_path / "run"
    for stated in ("", "--classes public"):
        message = refused(f"train dp-mlp --data {folder} {QUICK} --out {out} {stated}")
        assert "one for every 10" in message
        assert "hidden" not in message
        assert not out.exists()


def test_names_that_nobody_stated_are_published_nowhere(people, answer, run, tmp_path):
    folder = people(label=lambda n: ["crimson", "indigo"][n % 2])
    place = tmp_path / "there"
    place.mkdir()
    code, printed, _ = run(f"train dp-mlp --data {folder} {QUICK} --out {place / 'run'}")
    assert code == 0
    assert "class numbers only; to publish names: --classes a,b,c" in printed
    assert run(f"predict {place / 'run'} --data {folder} --out {place / 'p.csv'}")[0] == 0
    assert run(f"report {place / 'run'} --out {place / 'page.html'}")[0] == 0
    shown = answer(f"data show {folder}")
    assert (shown["num_classes"], shown["class_names"]) == (2, None)
    files = [path for path in place.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [
        path.name
        for path in files
        if {b"crimson", b"indigo"} & set(re.findall(rb"[a-z]+", path.read_bytes()))
    ] == []
    said = section(place / "run", "PUBLIC BY ASSUMPTION")
    assert "numbered in the order of their names, which are not published" in said


@pytest.mark.parametrize(
    "stated, lines",
    [
        ("red,blue", ["the names of the classes: red, blue"]),
        ("public", ["the names of the classes: blue, red", "the owner says that they are public"]),
    ],
)
def test_names_that_are_stated_stand_on_the_certificate_and_come_back(
    people, answer, refused, tmp_path, stated, lines
):
    folder, out = people(), tmp_path / "run"
    answer(f"train dp-mlp --data {folder} {QUICK} --out {out} --classes {stated}")
    names = json.loads((out / "settings.json").read_text())["class_names"]
    assert names == (["red", "blue"] if "," in stated else ["blue", "red"])
    said = section(out, "PUBLIC BY ASSUMPTION")
    assert all(line in said for line in lines)
    assert ("read off the labels" in said) == (stated == "public")
    # Nobody has to say it again, and what was not there in training is refused.
    found = answer(f"predict {out} --data {folder}")["predictions"]
    assert all(names[row["class"]] == row["name"] for row in found)
    other = people("other", label=lambda n: "pink")
    assert "'pink'" in refused(f"predict {out} --data {other}")
    assert evidence.read(str(out)).names == tuple(names)


def test_class_numbers_have_no_names_and_their_number_is_said_to_be_read_off(
    people, answer, tmp_path
):
    folder = people(label=lambda n: n % 2)
    answer(f"train dp-mlp --data {folder} {QUICK} --out {tmp_path / 'run'}")
    said = section(tmp_path / "run", "PUBLIC BY ASSUMPTION")
    assert "the number of classes, read off the labels" in said
    assert "names of the classes" not in said
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["class_names"] is None
    answer(f"train dp-mlp --data {folder} {QUICK} --out {tmp_path / 'stated'} --classes 2")
    assert "read off the labels" not in section(tmp_path / "stated", "PUBLIC BY ASSUMPTION")


def test_a_run_goes_on_under_the_same_statement_only(people, run, refused, tmp_path, monkeypatch):
    folder, out = people(), tmp_path / "run"
    train = f"train dp-mlp --data {folder} {QUICK} --out {out}"

    def dying(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(METHODS["dp-mlp"], "restore", dying)
        assert run(f"{train} --classes red,blue")[0] == 130
    assert "begun with classes = ['red', 'blue']" in refused(f"{train} --classes blue,red --resume")
    assert run(f"{train} --classes red,blue --resume")[0] == 0


def test_a_file_of_settings_states_it_too(people, run, tmp_path):
    config = tmp_path / "run.toml"
    for number, stated in enumerate(('["red", "blue"]', '"public"', '"red,blue"')):
        config.write_text(
            f'method = "dp-mlp"\ndata = "{people(str(number))}"\nepsilon = 8\nclasses = {stated}\n'
            f'directed = false\nout = "{tmp_path / f"run{number}"}"\n[settings]\nsteps = 2\n'
            "sample_rate = 1.0\n"
        )
        assert run(f"train --config {config}")[0] == 0


# --- columns and cells ----------------------------------------------------------------------------


def test_columns_are_found_by_their_names(people, answer, refused, tmp_path):
    def label(n):
        return n % 2

    folder, out = people(label=label), tmp_path / "run"
    answer(f"train dp-mlp --data {folder} {QUICK} --out {out}")
    predict = f"predict {out} --data"
    turned = people("turned", label, ("posts", "age"))
    expected = answer(f"{predict} {folder}")["predictions"]
    assert answer(f"{predict} {turned}")["predictions"] == expected
    message = refused(f"{predict} {people('renamed', label, ('age', 'post'))}")
    assert "no 'posts'" in message
    message = refused(f"{predict} {people('more', label, ('age', 'posts', 'z'))}")
    assert "Got one more, 'z'; leave it out" in message
    said = section(out, "PUBLIC BY ASSUMPTION")
    assert "the number of nodes, the feature columns and their names" in said
    assert "the names of the feature columns: age, posts" in said


@pytest.mark.parametrize(
    "cell, way",
    [
        ('"18,5"', "write numbers with a point: 18.5."),
        ("2026-11-18", "give days since a public date"),
        ("18.11.2026", "give days since a public date"),
        ("11/18/26 10:00", "give days since a public date"),
    ],
)
def test_a_cell_that_means_a_number_is_told_how_to_be_one(people, refused, cell, way):
    folder = people(label=lambda n: n % 2)
    table = (folder / "nodes.csv").read_text().replace(",20,", f",{cell},", 1)
    (folder / "nodes.csv").write_text(table)
    assert way in refused(f"data show {folder}")


def test_a_path_that_does_not_fit_is_told_which_does(people, refused):
    folder = people()
    assert f"give its directory: {folder}" in refused(f"data show {folder / 'nodes.csv'}")
    message = refused("train dp-mlp --data wart --epsilon 8 --out wart-run")
    assert message.startswith("graphveil: There is no file or directory 'wart'")


def test_a_look_at_data_names_columns_and_asks_about_identifiers(people, answer, run):
    folder = people(label=lambda n: n % 20)
    assert answer(f"data show {people('two')}")["columns"] == ["age", "posts"]
    for command in ("data show {}", f"train dp-mlp --data {{}} {QUICK} --out {folder}-run"):
        code, printed, err = run(f"{command.format(folder)} --classes 20")
        assert code == 0
        assert err.count("\n") == 1
        assert "fewer than ten records for each class: is 'label' an identifier?" in err
        assert ("the names of the feature columns: age, posts" in printed) == ("show" in command)
    assert run(f"predict {folder}-run --data {folder}")[2].count("identifier") == 0


@pytest.mark.parametrize("cell, way", [("", "public constant"), ("tall", "public list")])
def test_a_cell_that_is_no_number_does_not_send_anybody_into_a_leak(people, refused, cell, way):
    folder = people(label=lambda n: n % 2)
    table = (folder / "nodes.csv").read_text().replace(",20,", f",{cell},", 1)
    (folder / "nodes.csv").write_text(table)
    message = refused(f"data show {folder}")
    assert way in message
    assert ("hash of the cell alone" in message) == (cell == "tall")
    assert "read off private rows: a release that no certificate covers" in message


def test_every_certificate_says_who_vouches_for_preprocessing(people, answer, tmp_path):
    folder = people(label=lambda n: n % 2)
    answer(f"train dp-mlp --data {folder} {QUICK} --out {tmp_path / 'run'}")
    assert "the owner vouches" in section(tmp_path / "run", "PUBLIC BY ASSUMPTION")
    assert "filled or scaled" in section(tmp_path / "run", "VOID IF")


# --- directions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dp-gnn", "gap", "graph-split"])
def test_one_edge_more_or_less_moves_neither_unit_nor_noise(name):
    from graphveil.data.synthetic import social_network
    from graphveil.graph.splits import split

    data = split(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1))
    stepped = {} if name == "gap" else {"steps": 2, "sample_rate": 1.0}
    method = METHODS[name](unit="edge", epsilon=8.0, **stepped)
    plans = []
    for edges in (data.edge_index, data.edge_index[:, 1:]):
        data.edge_index = edges
        plans.append(method.plan(Facts.of(data)))
    assert plans[0] == plans[1]
    assert plans[0].unit == "edge-undirected"


def test_the_unit_edge_asks_whether_edges_have_a_direction(save, answer, refused, tmp_path):
    graph, train = save(), f"{QUICK} --set unit=edge --out {tmp_path / 'run'}"
    message = refused(f"train dp-gnn --data {graph} {train}")
    assert "--directed or --undirected" in message
    assert not (tmp_path / "run").exists()
    answer(f"train dp-gnn --data {graph} {train} --undirected")
    answer(f"train dp-gnn --data {graph} {train} --directed --force")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["guarantee"]["unit"] == "edge-directed"
    # Under the unit node nobody asks, and nothing is said.
    answer(f"train dp-gnn --data {graph} {QUICK} --out {tmp_path / 'node'}")
    facts = json.loads((tmp_path / "node" / "plan.json").read_text())["plan"]["facts"]
    assert facts["directed"] is None
    assert "--undirected" in refused(
        "plan gap --nodes 500 --features 9 --classes 2 --epsilon 8 --set unit=edge"
    )


def test_lines_of_a_table_are_directed_if_it_is_said(people, answer):
    shown = answer(f"data show {people()} --classes public")
    assert (shown["edges"], shown["messages"]) == ("undirected", 4)
    assert answer(f"data show {people('b')} --classes public --directed")["messages"] == 2


# --- people who were left out ---------------------------------------------------------------------


@pytest.fixture
def school(tmp_path):
    """Sixty people as Facebook100 has them; the last one has one friend, or none."""
    gen = np.random.default_rng(0)
    info = np.stack([gen.integers(1, 3, 60) for _ in range(5)] + [2004 + np.arange(60) % 6] * 2, 1)
    ring = np.arange(59)
    ends = np.stack([np.r_[ring, 59], np.r_[(ring + 1) % 59, 0]])
    folder = tmp_path / "facebook100"
    folder.mkdir()
    for name, kept in (("Whole", ends), ("Less", ends[:, :-1])):
        matrix = sparse.coo_matrix((np.ones(kept.shape[1]), kept), (60, 60))
        both = sparse.csc_matrix(matrix + matrix.T)
        savemat(folder / f"{name}.mat", {"A": both, "local_info": info})
    return tmp_path


def test_data_that_private_edges_chose_has_no_guarantee(school, answer, run, refused, tmp_path):
    settings = f"--root {school} --epsilon 1 --set unit=edge --set open_steps=3"
    sizes = []
    for name in ("Whole", "Less"):
        out = tmp_path / name
        trained = answer(f"train gap --data facebook100:{name}:gap {settings} --out {out}")
        assert trained["epsilon"] == "inf"
        assert "without a friend" in trained["void_because"][0]
        assert "VOID: people without a friend" in (out / "certificate.txt").read_text()
        sizes.append(json.loads((out / "plan.json").read_text())["plan"]["facts"]["num_nodes"])
    assert sizes == [60, 59]  # what one friendship changes
    assert runs.Run(tmp_path / "Whole").read().certificate_.void_because
    assert evidence.read(str(tmp_path / "Whole")).status == "void"
    ledger = tmp_path / "study.ledger"
    answer(f"ledger open {ledger} --name people --epsilon 5 --delta 1e-6")
    charged = f"--out {tmp_path / 'charged'} --ledger {ledger}"
    message = refused(f"train gap --data facebook100:Whole:gap {settings} {charged}", code=3)
    assert "without a friend" in message
    # With everybody in it, the same school has its guarantee.
    whole = answer(f"train gap --data facebook100:Whole {settings} --out {tmp_path / 'all'}")
    assert whole["epsilon"] <= 1
