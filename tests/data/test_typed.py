"""Folders of typed tables: what they say, what is refused, and what a run makes of them."""

import json
import shutil
import warnings

import pandas as pd
import pytest
import torch

from graphveil import load, runs
from graphveil._errors import InvalidInputError
from graphveil.data import sizes_of, typed_hospital
from graphveil.data.class_list import Notice
from graphveil.data.hospital import write
from graphveil.data.schema import Schema, schema_beside
from graphveil.data.table_names import draft_for
from graphveil.data.typed_schema import split_relation
from graphveil.graph.typed import flatten

TABLES = {
    "nodes-patient": "id,label,split,age\nann,yes,train,71\nbob,no,train,31\neve,yes,test,50\n",
    "nodes-drug": "id,strength\naspirin,3\n007,2\n",
    "nodes-code": "id\nx\ny\n",
    "edges-patient-takes-drug": "source,target,time\nann,aspirin,2020-01-02\nann,007,2020-01-01\n",
    "edges-patient-has-code": "source,target\nbob,y\nbob,y\n",
    "edges-patient-knows-patient": "source,target\nann,bob\n",
}
SCHEMA = """
people = ["patient"]
target = "patient"
[types.patient.columns.age]
kind = "number"
low = 0
high = 100
[types.patient.label]
column = "label"
task = "binary"
classes = ["no", "yes"]
[relations.patient-takes-drug]
lists = ["mean"]
"""


@pytest.fixture
def folder(tmp_path):
    """Typed tables; called with changes of their texts, None for one that is not there."""

    def make(schema=None, **changes):
        place = tmp_path / f"tables{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        for stem, text in {**TABLES, **changes}.items():
            if text is not None:
                (place / f"{stem}.csv").write_text(text)
        if schema is not None:
            (place / "schema.toml").write_text(schema)
        return place

    return make


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """The typed hospital, as tables."""
    place = tmp_path_factory.mktemp("typed") / "hospital"
    write("hospital:typed", place)
    return place


def test_a_folder_without_a_schema_holds_numbers(folder):
    data = load(folder(), people="patient", classes=["no", "yes"])
    assert data.columns == [
        "age", "patient-has-code count", "patient-has-code has x", "patient-has-code has y",
        "patient-takes-drug count", "patient-takes-drug mean strength",
        "patient-takes-drug sum strength",
    ]  # fmt: skip
    assert data.ids == ["ann", "bob", "eve"]
    assert data.y.tolist() == [1, 0, 1]
    assert data.train_mask.tolist() == [True, True, False]
    assert data.x[:, 5].tolist() == [2.5, 0, 0]
    assert data.x[:, 3].tolist() == [0, 1, 0]
    assert data.edge_index.tolist() == [[0, 1], [1, 0]]
    assert "schema" not in data
    links = load(folder(), people=["patient"], link="takes")
    assert links.links.tolist() == [[0, 0], [0, 1]]
    assert links.link_time.tolist() == [18263.0, 18262.0]


def test_a_schema_says_it_all(folder):
    data = load(folder(SCHEMA))
    assert data.columns[0] == "age"
    assert data.columns[-1] == "patient-takes-drug mean strength"
    assert data.x[:, 0].tolist() == pytest.approx([0.42, -0.38, 0.0])
    assert data.public[0] == "the schema: a record is one patient"
    assert any("declared public" in line and "drug (2 rows)" in line for line in data.public)
    assert Schema.from_dict(data.schema).to_dict() == data.schema
    parquet = folder(SCHEMA)
    for stem in TABLES:
        table = pd.read_csv(parquet / f"{stem}.csv", dtype=str if "edges" in stem else None)
        table.to_parquet(parquet / f"{stem}.parquet")
        (parquet / f"{stem}.csv").unlink()
    same = load(parquet)
    assert same.x.equal(data.x)
    assert same.columns == data.columns


def test_rows_depend_on_no_order_of_lines(folder):
    lines = TABLES["edges-patient-takes-drug"].splitlines()
    turned = "\n".join([lines[0], *reversed(lines[1:])]) + "\n"
    one, other = (load(place) for place in (
        folder(SCHEMA), folder(SCHEMA, **{"edges-patient-takes-drug": turned})))  # fmt: skip
    assert one.x.equal(other.x)


@pytest.mark.parametrize(
    "schema, changes, words",
    [
        (None, {}, "Which of them are people must be stated"),
        (SCHEMA, {"nodes-drug": None}, r"ends|table for each|types that have tables"),
        (
            SCHEMA,
            {"nodes-drug": "id,strength\naspirin,3\n"},
            r"'target' must be an id in nodes-drug.csv. Got '007' in row 2.*private lists",
        ),
        (SCHEMA, {"nodes-drug": "id,strength\na,3\na,2\n"}, "unlike all other ids"),
        (SCHEMA, {"nodes-drug": "id,strength\n"}, "has no rows"),
        (SCHEMA, {"nodes-drug": "id,strength\naspirin,strong\n007,2\n"}, "a finite number"),
        (SCHEMA, {"edges-patient-drug": "source,target\n"}, "edges-SOURCE-RELATION-TARGET"),
        (SCHEMA, {"edges-patient-sees-doctor": "source,target\n"}, "nodes-TYPE of its own"),
        (SCHEMA.replace('"patient"]', '"patient", "nurse"]', 1), {}, "names. Got 'nurse'"),
        (SCHEMA.replace("takes", "buys"), {}, "relation that the schema names. Got"),
        (SCHEMA.replace('["mean"]', '["median"]'), {}, "median"),
        (SCHEMA.replace('target = "patient"', 'target = "drug"'), {}, "'target' parameter"),
        (SCHEMA + '[types.drug.label]\ncolumn = "a"\ntask = "regression"\nlow = 0\nhigh = 1\n', {},
         "'drug' is not among 'people'"),
        (SCHEMA + 'colour = "red"\n', {}, "unknown key 'colour'"),
        (SCHEMA.replace('["patient"]', '"?"', 1), {}, "not filled in: 'people'"),
        (SCHEMA, {"edges-patient-takes-drug": "source,target,time\nann,007,soon\n"}, "or a date"),
        ('unit = "patient"\n', {}, "must be about types"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_a_line(folder, schema, changes, words):
    with pytest.raises(InvalidInputError, match=words) as refusal:
        load(folder(schema, **changes))
    assert "\n" not in str(refusal.value)


def test_statements_must_agree(folder):
    place = folder(SCHEMA)
    for asked, words in (
        ({"people": ["drug"]}, "'people' parameter must be as the schema says"),
        ({"link": "eats"}, "'link' parameter must be a relation"),
        ({"link": "takes"}, "Got both"),
        ({"target": "drug"}, "as the schema says"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            load(place, **asked)
    assert load(place, people="patient", target="patient").x.equal(load(place).x)
    plain = folder()
    for stem in TABLES:
        (plain / f"{stem}.csv").unlink()
    (plain / "nodes.csv").write_text("id,age\nann,1\n")
    (plain / "edges.csv").write_text("source,target\n")
    with pytest.raises(InvalidInputError, match="without types"):
        load(plain, people=["patient"])
    (plain / "schema.toml").write_text(SCHEMA)
    with pytest.raises(InvalidInputError, match="about several types"):
        load(plain)


def test_names_of_relations_are_read_if_they_are_clear():
    assert split_relation("a-buys-b", ["a", "b"]) == ("a", "buys", "b")
    assert split_relation("a-b-c-d", ["a", "c-d", "b"]) == ("a", "b", "c-d")
    for stem, types in (("a-b", ["a", "b"]), ("a-x-b-c", ["a", "c", "b-c"]), ("x-is-y", ["x"])):
        with pytest.raises(InvalidInputError, match="SOURCE-RELATION-TARGET"):
            split_relation(stem, types)


def test_a_catalog_of_which_all_is_linked_is_asked_about(folder):
    drugs = [f"d{number}" for number in range(25)]
    table = "id,strength\n" + "".join(f"{name},{len(name)}\n" for name in drugs)
    edges = "source,target\n" + "".join(f"ann,{name}\n" for name in drugs)
    changes = {"nodes-drug": table, "edges-patient-takes-drug": edges}
    with pytest.warns(Notice, match="every row of 'drug' is on the list of somebody"):
        load(folder(SCHEMA, **changes))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        data = load(folder(SCHEMA, **{**changes, "nodes-drug": table + "unused,1\n"}))
    assert len(data.ids) == len(data.x)


def test_a_draft_names_every_type_and_relation(folder):
    text, columns = draft_for(folder())
    for word in ("[types.drug.columns.strength]", "[types.patient.columns.age]", 'people = "?"',
                 "[types.patient.label]", "[relations.patient-takes-drug]"):  # fmt: skip
        assert word in text
    assert "strength" in columns
    with pytest.raises(InvalidInputError, match="not filled in"):
        load(folder(text))


# --- the typed hospital ---------------------------------------------------------------------------


def test_the_typed_hospital_is_the_same_every_time_and_everywhere(hospital):
    data = load("hospital:typed")
    sizes = sizes_of("hospital:typed")
    assert (sizes.num_records, sizes.num_features) == tuple(data.x.shape)
    assert (sizes.task, sizes.num_classes) == ("binary", 2)
    assert 0.2 < data.y.double().mean() < 0.3
    read = load(hospital)
    for name in ("x", "y", "edge_index"):
        assert data[name].equal(read[name])
    assert (read.ids, read.schema) == (data.ids, data.schema)
    assert schema_beside(hospital).to_dict() == data.schema
    graph = typed_hospital.graph()
    assert flatten(graph, lists=[]).x.equal(data.x[:, :6])
    public = {"drug": 120, "diagnosis": 90}
    assert {kind: len(graph[kind].x) for kind in public} == public


def test_a_run_reads_types_as_it_was_trained_on_them(hospital, tmp_path):
    from graphveil import DPMLP

    run = runs.Run(tmp_path / "run")
    source = runs.Source(data=str(hospital), people=["patient"])
    run.train(DPMLP(epsilon=4.0, steps=5), source)
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["data"]["people"] == ["patient"]
    assert settings["schema"]["people"] == ["patient"]
    certificate = (tmp_path / "run" / "certificate.txt").read_text()
    assert "the types that are people: patient" in certificate
    assert "the types declared public" in certificate
    answers = run.read().predict_proba(run.load(str(hospital)))
    assert answers.shape == (5000, 2)
    assert torch.isfinite(answers).all()
    assert run.arrange().training.x.equal(load(hospital).x)
    other = tmp_path / "other"
    shutil.copytree(hospital, other)
    text = (other / "schema.toml").read_text()
    (other / "schema.toml").write_text(text.replace("high = 110", "high = 120"))
    with pytest.raises(InvalidInputError, match="of the type 'patient' 'high' of column 'age'"):
        run.load(str(other))
    (other / "schema.toml").write_text(text.replace('target = "drug"', 'target = "x"'))
    with pytest.raises(InvalidInputError, match="relation 'patient-takes-drug' is stated"):
        run.load(str(other))
    (other / "schema.toml").unlink()
    table = pd.read_csv(other / "nodes-patient.csv", dtype=str).drop(columns="readmitted")
    table.to_csv(other / "nodes-patient.csv", index=False)
    assert run.load(str(other)).x.equal(load(hospital).x)  # without labels, by the run's schema


def test_a_relation_without_a_table_is_named_before_tables_are_read(folder):
    wrong = SCHEMA.replace("takes", "eats") + 'source = "who"\n'
    with pytest.raises(InvalidInputError) as error:
        load(folder(wrong))
    assert "Got 'patient-eats-drug' instead, where the relations are patient-has-code" in str(
        error.value
    )


def test_people_without_a_table_are_named_before_tables_are_read(folder):
    spoilt = folder(SCHEMA.split("\n", 2)[2], **{"nodes-drug": "name,strength\naspirin,high\n"})
    with pytest.raises(
        InvalidInputError, match="Got 'nurse' instead, where the types are code, dr"
    ):
        load(spoilt, people=["nurse"])
    with pytest.raises(
        InvalidInputError, match="Got 'nurse' instead, where the types are code, dr"
    ):
        load(folder(SCHEMA), people=["nurse"])
    plain = folder(**{"nodes-drug": "name,strength\naspirin,high\n"})
    with pytest.raises(InvalidInputError, match="Which of them are people must be stated"):
        load(plain)
    with pytest.raises(InvalidInputError, match=f"'graphveil data schema {plain}' writes"):
        load(plain, people=["patient"])
