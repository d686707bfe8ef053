"""Schemas on the command line: a first draft, training and predicting by one, refusals."""

import json
import os
import re
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest

from graphveil._errors import InvalidInputError
from graphveil.data.class_list import Notice
from graphveil.data.schema import Schema

SCHEMA = """\
unit = "patient"
id = "pid"
[columns.age]
kind = "number"
low = 0
high = 100
[columns.sex]
kind = "category"
values = ["f", "m"]
[columns.room]
kind = "ignored"
[label]
column = "outcome"
task = "binary"
classes = ["alive", "died"]
"""


@pytest.fixture
def ward(tmp_path):
    """A small messy table with a schema beside it."""
    rng = np.random.default_rng(1)
    rows = []
    for place in range(80):
        old = int(rng.integers(20, 95))
        died = "died" if old + rng.normal(0, 10) > 60 else "alive"
        rows.append(f"p{place:03d},{died},{old},{'fm'[place % 2]},{place}")
    folder = tmp_path / "ward"
    folder.mkdir()
    (folder / "nodes.csv").write_text("\n".join(["pid,outcome,age,sex,room", *rows, ""]))
    pairs = rng.integers(0, 80, size=(120, 2))
    once = sorted({(min(pair), max(pair)) for pair in pairs.tolist() if pair[0] != pair[1]})
    lines = [f"p{a:03d},p{b:03d}" for a, b in once]
    (folder / "edges.csv").write_text("\n".join(["source,target", *lines, ""]))
    (folder / "schema.toml").write_text(SCHEMA)
    return folder


def train(ward, out, more=""):
    return f"train late-graph --data {ward} --epsilon 8 --out {out} --set steps=5 {more}"


@pytest.fixture
def trained(ward, tmp_path, answer):
    answer(train(ward, tmp_path / "run"))
    return tmp_path / "run"


def rewrite(path, change):
    path.write_text(change(path.read_text()))


def test_a_draft_is_made_from_names_alone(ward, run, answer, refused):
    (ward / "schema.toml").unlink()
    told = answer(f"data schema {ward}")
    assert told["out"] == str(ward / "schema.toml")
    assert told["columns"] == ["pid", "outcome", "age", "sex", "room"]
    text = (ward / "schema.toml").read_text()
    assert not any(value in text for value in ("p000", "died", "alive", '"m"'))
    assert told["to_fill_in"] == sum('"?"' in line.partition("#")[0] for line in text.splitlines())
    # Other values, the same names: the same draft.
    rewrite(ward / "nodes.csv", lambda t: t.splitlines()[0] + "\nx,y,1,2,3\n")
    answer(f"data schema {ward} --force")
    assert (ward / "schema.toml").read_text() == text
    assert "--force" in refused(f"data schema {ward}")


def test_a_draft_that_is_not_filled_in_is_refused(ward, answer, refused, tmp_path):
    answer(f"data schema {ward} --force")
    message = refused(train(ward, tmp_path / "run"))
    assert "column 'age' is not filled in: 'low'" in message
    assert not (tmp_path / "run").exists()


def test_a_draft_of_one_table_and_of_graphs(tmp_path, answer):
    (tmp_path / "graphs.csv").write_text("id,label\na,x\n")
    (tmp_path / "nodes.csv").write_text("graph,id,mass\na,1,2\n")
    (tmp_path / "edges.csv").write_text("graph,source,target\n")
    answer(f"data schema {tmp_path}")
    text = (tmp_path / "schema.toml").read_text()
    assert "[columns.mass]" in text
    assert 'column = "label"' in text
    assert "[columns.graph]" not in text
    answer(f"data schema {tmp_path}/nodes.csv --out {tmp_path}/other.toml")
    assert "[columns.mass]" in (tmp_path / "other.toml").read_text()


@pytest.mark.parametrize("path", ["nowhere", "x.txt", "empty.csv"])
def test_what_has_no_columns_is_refused(path, tmp_path, refused):
    (tmp_path / "x.txt").write_text("a,b")
    (tmp_path / "empty.csv").write_text("")
    assert path in refused(f"data schema {tmp_path}/{path}")
    assert not (tmp_path / "schema.toml").exists()


def test_the_schema_is_kept_listed_and_applied(ward, trained, run, answer, tmp_path):
    asked = json.loads((trained / "settings.json").read_text())
    assert Schema.from_dict(asked["schema"]) == Schema.read(ward / "schema.toml")
    certificate = (trained / "certificate.txt").read_text()
    assert "the schema, column age: a number from 0 to 100, cut to it" in certificate
    assert "the schema, label outcome: one of alive, died; died is looked for" in certificate

    before = answer(f"predict {trained} --data {ward}")["predictions"]
    assert before[3]["id"] == "p003"
    assert {row["name"] for row in before} <= {"alive", "died"}
    # In any order, without label, without what is ignored, and without the file beside.
    other = tmp_path / "other"
    shutil.copytree(ward, other)
    (other / "schema.toml").unlink()
    cells = [line.split(",") for line in (ward / "nodes.csv").read_text().splitlines()]
    turned = [",".join([row[3], row[2], row[0]]) for row in cells]
    (other / "nodes.csv").write_text("\n".join([*turned, ""]))
    assert answer(f"predict {trained} --data {other}")["predictions"] == before


DISAGREE = {
    "renamed": ("nodes.csv", lambda t: t.replace("age", "years", 1), "'age'.*'years'"),
    "missing": ("nodes.csv", lambda t: t.replace(",sex", ",room2", 1), "'sex'"),
    "extra": ("nodes.csv", lambda t: t.replace(",room", ",bed", 1), "'bed'"),
    "unseen": ("nodes.csv", lambda t: t.replace(",f,", ",x,", 1), "'x' in row 1.*schema is fixed"),
    "id": ("nodes.csv", lambda t: t.replace("pid", "PID", 1), "'pid'.*the schema calls them so"),
    "ends": ("edges.csv", lambda t: t.replace("target", "to", 1), "'target'.*schema calls them so"),
    "unit": ("schema.toml", lambda t: t.replace("patient", "person", 1), '"patient" in the run'),
    "edges": ("schema.toml", lambda t: t + "[edges]\ndirected = true\n", "'directed' of the edges"),
    "schema": (
        "schema.toml",
        lambda t: t.replace("100", "120"),
        "another schema: 'high' of column 'age' is 100 in the run and 120 here",
    ),
    "label": (
        "schema.toml",
        lambda t: t.replace("alive", "well"),
        r"another schema: 'classes' of the label is \['alive', 'died'\] in the run and \['well'",
    ),
}


@pytest.mark.parametrize("fault", DISAGREE)
def test_new_tables_that_disagree_get_one_line(fault, ward, trained, refused):
    name, change, message = DISAGREE[fault]
    rewrite(ward / name, change)
    told = refused(f"predict {trained} --data {ward}")
    assert re.search(message, told)
    assert "{" not in told
    assert "say in a schema" not in told


def test_a_table_may_be_sorted_by_rank(ward, trained, run, answer, tmp_path):
    by_rows = answer(f"predict {trained} --data {ward}")
    assert by_rows["interval"] is None
    ranked = answer(f"predict {trained} --data {ward} --sort rank")["predictions"]
    assert [row["rank"] for row in ranked] == list(range(1, 81))
    assert ranked == sorted(by_rows["predictions"], key=lambda row: row["rank"])
    assert ranked != by_rows["predictions"]
    code, out, _ = run(f"predict {trained} --data {ward} --sort rank")
    assert (code, out.splitlines()[1].split(",")[0]) == (0, ranked[0]["id"])


def test_intervals_of_a_regression_say_their_level(ward, run, answer, refused, tmp_path):
    rewrite(
        ward / "schema.toml",
        lambda t: (
            t.partition("[columns.age]")[0]
            + t[t.index("[columns.sex]") : t.index("[label]")]
            + '[label]\ncolumn = "age"\ntask = "regression"\nlow = 0\nhigh = 100\n'
            + '[columns.outcome]\nkind = "category"\nvalues = ["alive", "died"]\n'
        ),
    )
    answer(train(ward, tmp_path / "run"))
    told = answer(f"predict {tmp_path / 'run'} --data {ward}")
    assert told["interval"] == 0.9
    assert list(told["predictions"][0]) == ["id", "value", "low", "high"]
    assert all(row["low"] <= row["value"] <= row["high"] for row in told["predictions"])
    _, _, err = run(f"predict {tmp_path / 'run'} --data {ward}")
    assert "interval: low to high holds 90 % of true values" in err
    _, out, _ = run(f"predict {tmp_path / 'run'} --data {ward} --out {tmp_path / 'p.csv'}")
    assert "90 %" in out
    assert "the task 'regression'" in refused(
        f"predict {tmp_path / 'run'} --data {ward} --sort rank"
    )


def test_numbers_in_place_of_codes_are_refused_or_said_at_predict(ward, tmp_path, answer):
    """A run that read codes as text, asked in Python about tables of pandas."""
    import graphveil

    rewrite(
        ward / "schema.toml",
        lambda t: t.replace('kind = "ignored"', 'kind = "category"\nbuckets = 8\noptional = true'),
    )
    answer(train(ward, tmp_path / "run"))
    method = graphveil.read(tmp_path / "run")
    nodes, edges = (
        pd.read_csv(ward / f"{name}.csv", dtype=str).drop(columns="outcome", errors="ignore")
        for name in ("nodes", "edges")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = method.predict_proba((nodes, edges))
    inferred = nodes.assign(room=pd.to_numeric(nodes["room"]))
    with pytest.warns(Notice, match=r"holds numbers in room.*dtype=str"):
        assert method.predict_proba((inferred, edges)).equal(wanted)
    inferred.loc[0, "room"] = None
    with pytest.raises(InvalidInputError, match=r"'room' is a category.*floats.*dtype=str"):
        method.predict_proba((inferred, edges))
    with pytest.raises(InvalidInputError, match="the schema calls them so"):
        method.predict_proba((nodes.rename(columns=str.upper), edges))


def test_values_outside_are_said_and_not_certified(ward, run, tmp_path):
    rewrite(ward / "nodes.csv", lambda t: t.replace("\np003,", "\np999,died,999,f,1\np003,", 1))
    code, _, err = run(train(ward, tmp_path / "run"))
    assert code == 0
    assert "'age' 1" in err
    assert err.count("\n") == 1
    assert "'age' 1" not in (tmp_path / "run" / "certificate.txt").read_text()
    code, _, err = run(f"predict {tmp_path / 'run'} --data {ward} --out {tmp_path / 'p.csv'}")
    assert (code, err.count("'age' 1")) == (0, 1)


def test_a_schema_may_be_named(ward, answer, refused, tmp_path):
    mine = tmp_path / "mine.toml"
    (ward / "schema.toml").rename(mine)
    assert "graphveil data schema" in refused(train(ward, tmp_path / "a"))
    answer(train(ward, tmp_path / "a", f"--schema {mine}"))
    (ward / "schema.toml").write_text(SCHEMA.replace("100", "120"))
    assert len(answer(f"predict {tmp_path / 'a'} --data {ward}")["predictions"]) == 80
    config = tmp_path / "run.toml"
    config.write_text(
        f'method = "late-graph"\ndata = "{ward}"\nepsilon = 8\nschema = "{mine}"\n'
        f'out = "{tmp_path / "b"}"\n'
    )
    answer(f"train --config {config}")
    one, two = (json.loads((tmp_path / r / "settings.json").read_text()) for r in "ab")
    assert one["schema"] == two["schema"]
    assert one["schema"]["columns"]["age"]["high"] == 100
    assert "nowhere.toml" in refused(train(ward, tmp_path / "c", "--schema nowhere.toml"))


def test_a_run_without_a_schema_takes_none(ward, answer, refused, tmp_path):
    (ward / "schema.toml").unlink()
    rewrite(
        ward / "nodes.csv",
        lambda t: (
            t.replace("pid,outcome,age,sex", "id,label,age,sex")
            .replace(",f,", ",0,")
            .replace(",m,", ",1,")
        ),
    )
    answer(train(ward, tmp_path / "run", "--classes alive,died"))
    (ward / "schema.toml").write_text(SCHEMA)
    assert "trained with no schema" in refused(f"predict {tmp_path / 'run'} --data {ward}")


def test_a_run_goes_on_with_its_own_schema_only(ward, tmp_path, monkeypatch, run, refused):
    line = train(ward, tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", lambda *_: os.kill(os.getpid(), 2))
        assert run(line)[0] == 130
    (ward / "schema.toml").write_text(SCHEMA.replace("100", "120"))
    assert "another schema: 'high' of column 'age' is 100 in the run and 120 here" in refused(
        f"{line} --resume"
    )
    (ward / "schema.toml").write_text(SCHEMA)
    assert run(f"{line} --resume")[0] == 0


def test_training_tables_need_their_label_and_split(ward, refused, tmp_path):
    rewrite(ward / "schema.toml", lambda t: 'split = "fold"\n' + t)
    assert "'fold'" in refused(train(ward, tmp_path / "run"))
    rewrite(ward / "schema.toml", lambda t: t.partition("\n")[2])
    cells = [line.split(",") for line in (ward / "nodes.csv").read_text().splitlines()]
    (ward / "nodes.csv").write_text("\n".join([",".join([r[0], *r[2:]]) for r in cells] + [""]))
    assert "'outcome'" in refused(train(ward, tmp_path / "run"))


def test_data_show_lists_what_is_public(ward, answer):
    told = answer(f"data show {ward}")
    assert told["task"] == "binary"
    assert (told["labelled"], told["num_features"]) == (80, 3)
    assert "the schema, column sex: one of f, m" in told["public"]


def test_the_hospital_is_exported_and_trained_on(answer, run, refused, tmp_path):
    out = tmp_path / "hospital"
    told = answer(f"data export hospital --out {out}")
    assert told["num_nodes"] == 5000
    assert sorted(path.name for path in out.iterdir()) == ["edges.csv", "nodes.csv", "schema.toml"]
    code, text, err = run(
        f"train late-graph --data {out} --epsilon 8 --out {tmp_path / 'r'} --json"
    )
    assert code == 0
    assert "'age'" in err
    assert json.loads(text)["epsilon"] <= 8
    assert "hospital" in refused(f"data export social --out {tmp_path / 's'}")


def test_owners_are_proposed_and_shown(run, answer, tmp_path):
    folder = tmp_path / "visits"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,patient_id,age\n1,a,30\n2,a,31\n3,b,50\n")
    (folder / "edges.csv").write_text("source,target\n1,3\n")
    answer(f"data schema {folder}")
    text = (folder / "schema.toml").read_text()
    assert '# owner = "patient_id"  # ? whose row it is' in text
    age = '[columns.age]\nkind = "number"\nlow = 0\nhigh = 110\n'
    (folder / "schema.toml").write_text(f'unit = "visit"\nowner = "patient_id"\n{age}')
    _, shown, _ = run(f"data show {folder}")
    assert re.search(r"owner +patient \(2, by patient_id\)", shown)
    owner = {"name": "patient", "count": 2, "column": "patient_id"}
    assert answer(f"data show {folder}")["owner"] == owner
    other = tmp_path / "typed"
    other.mkdir()
    (folder / "nodes.csv").rename(other / "nodes-visit.csv")
    head = 'people = ["visit"]\n[types.visit]\nowner = "patient_id"\n'
    (other / "schema.toml").write_text(head + age.replace("[", "[types.visit."))
    assert answer(f"data show {other}")["owner"] == owner
