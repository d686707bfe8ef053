"""A public schema: read, written, refused in one line, and applied row by row, bit for bit."""

import math
import subprocess
import sys
import warnings
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from graphveil._errors import InvalidInputError
from graphveil._inputs import toml_of
from graphveil.data import load
from graphveil.data.class_list import Notice
from graphveil.data.encoding import encode_table, hash_word
from graphveil.data.schema import (
    Category,
    Date,
    Edges,
    Flag,
    Ignored,
    Label,
    Number,
    Schema,
    Text,
)
from graphveil.data.schema_draft import draft_types
from graphveil.data.schema_lines import public_lines
from graphveil.graph.checks import check, public_of
from graphveil.graph.splits import split

SCHEMA = Schema(
    unit="patient",
    id="pid",
    empty=["NA"],
    columns={
        "age": Number(low=0, high=120, optional=True),
        "sex": Category(values=["female", "male"], other=True, optional=True),
        "zip": Category(buckets=8),
        "admitted": Date(origin="2020-01-01", scale="30 days", optional=True),
        "smoker": Flag(optional=True),
        "notes": Text(buckets=16, optional=True),
        "room": Ignored(),
    },
    label=Label(task="binary", column="outcome", classes=["alive", "died"]),
    edges=Edges(source="from", target="to", directed=False),
)
NODES = (
    "pid,outcome,age,sex,zip,admitted,smoker,notes,room\n"
    'p1,died,30,female,01067,2020-01-31,yes,"Fell, twice",1\n'
    "p2,alive,90,male,AB1,2019-12-31T12:00,No,ok,2\n"
    "p3,,NA,unknown,99,,,,\n"
)
EDGES = "from,to\np1,p2\np3,p1\n"


def folder_with(folder, nodes=NODES, edges=EDGES, schema=SCHEMA):
    folder.mkdir(exist_ok=True)
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    if schema is not None:
        text = schema if isinstance(schema, str) else schema.to_toml()
        (folder / "schema.toml").write_text(text)
    return folder


def encode(columns, cells, *, empty=(), **table):
    """A table of one column ``a`` (and others), by the schema of these columns."""
    schema = Schema(columns=columns, empty=empty)
    frame = pd.DataFrame({"id": range(len(cells)), "a": cells, **table})
    return encode_table(schema, frame, "the table")


def refusal(call, *args, **options):
    with pytest.raises(InvalidInputError) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- tables ---------------------------------------------------------------------------------------


def test_tables_are_read_by_the_schema_beside_them(tmp_path):
    data = load(folder_with(tmp_path / "ward"))
    names = dict(zip(data.columns, data.x.t().tolist(), strict=True))
    assert names["age"] == [-0.5, 0.5, 0.0]
    assert names["age is missing"] == [0, 0, 1]
    assert (names["sex=female"], names["sex=male"]) == ([1, 0, 0], [0, 1, 0])
    assert (names["sex is other"], names["sex is missing"]) == ([0, 0, 1], [0, 0, 0])
    assert names["admitted"] == pytest.approx([1.0, -0.5 / 30, 0.0])
    assert (names["smoker"], names["smoker is missing"]) == ([1, 0, 0], [0, 0, 1])
    assert data.x[:, [c.startswith("zip#") for c in data.columns]].sum(1).tolist() == [1, 1, 1]
    notes = data.x[:, [c.startswith("notes#") for c in data.columns]]
    assert notes.norm(dim=1).tolist() == pytest.approx([1, 1, 0])
    assert not any("room" in name for name in data.columns)
    assert data.y.tolist() == [1, 0, -1]
    assert (data.task, data.unit_name, data.directed) == ("binary", "patient", False)
    assert (data.class_names, data.num_classes) == (["alive", "died"], 2)
    assert data.edge_index.shape == (2, 4)
    assert Schema.from_dict(data.schema) == SCHEMA
    assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)


def test_columns_are_taken_by_name_in_any_order(tmp_path):
    table = pd.read_csv(folder_with(tmp_path / "one") / "nodes.csv", dtype=str)
    reversed_ = table[table.columns[::-1]].to_csv(index=False)
    one = load(tmp_path / "one")
    other = load(folder_with(tmp_path / "other", reversed_))
    assert one.columns == other.columns
    assert one.x.equal(other.x)
    assert one.y.equal(other.y)


def test_a_schema_may_be_named_and_goes_before_the_one_beside(tmp_path):
    folder = folder_with(tmp_path / "ward", schema='unit = "?"')
    path = tmp_path / "mine.toml"
    path.write_text(SCHEMA.to_toml())
    for schema in (path, str(path), SCHEMA, SCHEMA.to_dict()):
        assert load(folder, schema=schema).num_classes == 2
    assert "not filled in" in refusal(load, folder)


FAULTS = {
    "renamed": (lambda t: t.replace("age", "Age", 1), "must have the column 'age'.*'Age' instead"),
    "missing": (lambda t: t.replace("notes,room", "room,x"), "must have the column 'notes'"),
    "extra": (lambda t: t.replace("room", "bed", 1), "has the column 'bed', which the schema does"),
    "unseen class": (lambda t: t.replace("died", "dead"), "'outcome'.*'dead' in row 1"),
    "no number": (lambda t: t.replace(",90,", ",old,"), "'age'.*'old' in row 2"),
    "infinite": (lambda t: t.replace(",90,", ",inf,"), "'age'.*finite number.*'inf' in row 2"),
    "comma": (lambda t: t.replace(",90,", ',"90,5",'), r"'age'.*write numbers with a point: 90\.5"),
    "no date": (lambda t: t.replace("2020-01-31", "31.1.2020"), "'admitted'.*'31.1.2020' in row 1"),
    "no flag": (lambda t: t.replace("yes", "maybe"), "'smoker'.*yes or no.*'maybe' in row 1"),
    "not optional": (lambda t: t.replace(",99,", ",,"), "'zip' must be filled in.*row 3.*optional"),
    "no id": (lambda t: t.replace("pid", "id"), "'pid'"),
    "id twice": (lambda t: t.replace("p2", "p1"), "'pid'.*'p1' in row 2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_table_that_disagrees_gets_one_line(tmp_path, fault):
    change, message = FAULTS[fault]
    with pytest.raises(InvalidInputError, match=message) as caught:
        load(folder_with(tmp_path / "ward", change(NODES)))
    assert "\n" not in str(caught.value)


def test_a_missing_id_is_said_with_how_many_columns_there_are(tmp_path):
    names = ",".join(f"c{n}" for n in range(12))
    nodes = f"{names}\n{','.join('1' * 12)}\n"
    message = refusal(load, folder_with(tmp_path / "t", nodes, "source,target\n", None))
    assert "'c7' and 4 more instead" in message
    assert "say in a schema" in message
    message = refusal(load, folder_with(tmp_path / "t", nodes))
    assert "'c7' and 4 more instead" in message
    assert "the schema calls them so" in message
    assert "say in a schema" not in message


def test_a_label_column_of_ids_is_refused(tmp_path):
    ids = "".join(f"n{row},x{row},{row % 7}\n" for row in range(40))
    schema = Schema(
        columns={"age": Number(low=0, high=9)},
        label=Label(task="multiclass", column="who", classes=["a", "b", "c"]),
    )
    nodes, edges = "id,who,age\n" + ids, "source,target\nn1,n2\n"
    message = refusal(load, folder_with(tmp_path / "ids", nodes, edges, schema))
    assert "one of the classes that the schema states" in message
    assert "'x0' in row 1" in message
    plain = nodes.replace("who", "label")
    message = refusal(load, folder_with(tmp_path / "plain", plain, edges, None))
    assert "identifiers or measurements" in message
    assert "graphveil data schema" in message


@pytest.mark.parametrize(("cell", "word"), [("high", "categories"), ("2020-01-01", "date")])
def test_without_a_schema_the_way_out_names_one(tmp_path, cell, word):
    nodes = f"id,label,a\n1,0,3\n2,1,{cell}\n"
    message = refusal(load, folder_with(tmp_path / "t", nodes, "source,target\n", None))
    assert word in message
    assert "graphveil data schema" in message


def test_classes_and_direction_are_stated_once(tmp_path):
    folder = folder_with(tmp_path / "ward")
    assert "schema states the label" in refusal(load, folder, classes=["alive", "died"])
    assert "as the schema says" in refusal(load, folder, directed=True)
    assert load(folder, directed=False).directed is False
    assert "for a directory" in refusal(load, save_npz(tmp_path), schema=SCHEMA)
    assert "files of your own" in refusal(load, "social", schema=SCHEMA)


def save_npz(folder):
    path = folder / "g.npz"
    np.savez(path, x=np.ones((2, 1)), edge_index=np.zeros((2, 0), dtype=int))
    return path


def test_a_label_that_no_schema_states_is_read_as_ever(tmp_path):
    schema = Schema(columns={"a": Number(low=0, high=1)})
    nodes = "id,label,split,a\n1,0,train,1\n2,1,val,0\n3,1,test,0.5\n"
    data = load(folder_with(tmp_path / "t", nodes, "source,target\n1,2\n", schema), classes=2)
    assert data.y.tolist() == [0, 1, 1]
    assert data.train_mask.tolist() == [True, False, False]
    assert "task" not in data


def test_owners_are_numbered_and_one_may_have_several_rows(tmp_path):
    schema = Schema(columns={"a": Number(low=0, high=1)}, owner="person", split="fold")
    nodes = "id,person,fold,a\n1,ann,train,1\n2,bob,test,0\n"
    data = load(folder_with(tmp_path / "t", nodes, "source,target\n", schema))
    assert data.owner.tolist() == [0, 1]
    assert data.test_mask.tolist() == [False, True]
    several = nodes.replace("bob", "ann") + "3,bob,,1\n4,ann,,0\n"
    data = load(folder_with(tmp_path / "t", several, "source,target\n", schema))
    assert data.owner.tolist() == [0, 0, 1, 0]
    assert data.owner_name == "person"
    with pytest.raises(
        InvalidInputError, match=r"in .train_mask. .as .1.. and in .test_mask. .as .2"
    ):
        check(data, labels=False)
    capped = Schema.from_dict(schema.to_dict() | {"owner_rows": 2})
    data = load(folder_with(tmp_path / "t", several, "source,target\n", capped))
    assert sorted(data.owner.tolist()) == [0, 0, 1]
    assert data.owner_rows == 2
    assert len(data.ids) == 3
    assert load(tmp_path / "t", schema=capped.for_prediction()).x.shape == (4, 1)
    assert "without one" in refusal(Schema, owner_rows=2)
    without = nodes.replace("person", "x")
    message = refusal(load, folder_with(tmp_path / "t", without, "source,target\n", schema))
    assert "Got 'person' instead" in message


def test_parquet_and_csv_agree(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {
            "id": ["a", "b", "c"],
            "n": pd.array([1, None, 2**60 + 1], dtype="Int64"),
            "code": pd.array([7, None, 12], dtype="Int64"),
            "day": pd.to_datetime(["2020-03-01", None, "2021-01-01"]),
            "yes": pd.array([True, None, False], dtype="boolean"),
        }
    )
    schema = Schema(
        columns={
            "n": Number(low=0, high=2**61, optional=True),
            "code": Category(values=[7, 12], optional=True),
            "day": Date(origin="2020-01-01", optional=True, format="%d.%m.%Y"),
            "yes": Flag(optional=True),
        }
    )
    folder = folder_with(tmp_path / "p", edges="source,target\na,b\n", schema=schema)
    (folder / "nodes.csv").unlink()
    frame.to_parquet(folder / "nodes.parquet", index=False)
    written = frame.assign(day=frame["day"].dt.strftime("%d.%m.%Y"))
    text = folder_with(tmp_path / "c", written.to_csv(index=False), "source,target\n", schema)
    x = load(folder).x
    assert x.equal(load(text).x)
    assert x[1].tolist() == [0, 1, 0, 0, 1, 0, 1, 0, 1]
    frame[1:2].to_parquet(folder / "nodes.parquet", index=False)
    (folder / "edges.csv").write_text("source,target\n")
    assert load(folder).x[0].equal(x[1])
    frame[2:].to_parquet(folder / "nodes.parquet", index=False)  # no empty cell left
    assert load(folder).x[0].equal(x[2])


# --- rows depend on themselves alone --------------------------------------------------------------


def random_table(rng, rows):
    """Cells of every kind, with texts, numbers, odd ones and empty ones among them."""
    words = np.array(["fell", "Twice", "café", "cafe\u0301", "NA", "x", "pain", "\uff10"])
    number = rng.normal(60, 60, rows)
    return pd.DataFrame(
        {
            "pid": [f"p{n}" for n in rng.permutation(rows)],
            "outcome": rng.choice(["alive", "died", ""], rows),
            "age": np.where(rng.random(rows) < 0.2, "NA", [repr(float(n)) for n in number]),
            "sex": rng.choice(["female", "male", "?", "", " male "], rows),
            "zip": rng.choice(["01067", "1067", "AB1", "1e3", "true"], rows),
            "admitted": rng.choice(["2020-05-06", "1999-01-01", "", "2020-01-01T03:30"], rows),
            "smoker": rng.choice(["yes", "No", "1", "0", "", "TRUE"], rows),
            "notes": [" ".join(rng.choice(words, rng.integers(0, 5))) for _ in range(rows)],
            "room": "",
        }
    )


def bits(data, row):
    """Every bit of what became of a row."""
    x = data.x if data.x.layout == torch.strided else data.x.to_dense()
    return x[row].numpy().tobytes(), data.y[row].numpy().tobytes()


def wide(schema):
    return Schema.from_dict(
        schema.to_dict() | {"columns": schema.to_dict()["columns"] | {"notes": WIDE}}
    )


WIDE = {"kind": "text", "buckets": 5000, "optional": True}


@pytest.mark.parametrize("schema", [SCHEMA, wide(SCHEMA)], ids=["dense", "sparse"])
@pytest.mark.filterwarnings("ignore::graphveil.data.class_list.Notice")
def test_a_row_is_bit_equal_whatever_the_others_are(schema, tmp_path):
    rng = np.random.default_rng(5)
    table, strangers = random_table(rng, 60), random_table(rng, 60)

    def read(frame):
        return load(folder_with(tmp_path / "t", frame.to_csv(index=False), "from,to\n", schema))

    whole = read(table)
    assert (whole.x.layout == torch.sparse_csr) == (schema is not SCHEMA)
    before = [bits(whole, row) for row in range(60)]
    assert len(set(before)) > 40  # rows do differ

    order = rng.permutation(60)
    turned = read(table.iloc[order])
    assert [bits(turned, place) for place in range(60)] == [before[row] for row in order]

    kept = np.sort(rng.choice(60, 25, replace=False))
    fewer = read(table.iloc[kept])
    assert [bits(fewer, place) for place in range(25)] == [before[row] for row in kept]

    for row in range(0, 60, 7):
        alone = read(table.iloc[[row]])
        assert bits(alone, 0) == before[row]
        changed = strangers.copy()
        changed["pid"] = [f"q{n}" for n in range(60)]
        changed.iloc[row] = table.iloc[row]
        assert bits(read(changed), row) == before[row]


def test_cells_of_one_column_may_be_of_several_types():
    """True, 1 and 1.0 are equal in Python, and must not stand for one another."""
    columns = {"a": Category(values=["true", "1"])}
    mixed = encode(columns, pd.Series([True, 1, 1.0, "1"], dtype=object)).x
    assert mixed.tolist() == [[1, 0], [0, 1], [0, 1], [0, 1]]
    turned = encode(columns, pd.Series([1, True], dtype=object)).x
    assert turned.tolist() == [[0, 1], [1, 0]]


# --- one table, however it was saved --------------------------------------------------------------

CODES = {
    "code": Category(buckets=64, optional=True),
    "grade": Category(values=["1", "2"], other=True, optional=True),
    "yes": Category(values=["true", "false"], optional=True),
    "flag": Flag(optional=True),
    "notes": Text(buckets=64, optional=True),
}


@pytest.mark.parametrize("stranger", [{}, {"code": None, "grade": None, "yes": None, "flag": None}])
def test_whole_numbers_and_flags_beside_an_empty_cell_are_the_same_in_every_file(
    stranger, tmp_path
):
    pytest.importorskip("pyarrow")
    rows = [
        {"id": "a", "code": 17, "grade": 1, "yes": True, "flag": 1, "notes": 3},
        {"id": "b", "code": 250, "grade": 2, "yes": False, "flag": 0, "notes": 4},
    ]
    whole = pd.DataFrame([*rows, {**rows[0], "id": "c", **stranger}])
    read = {}
    for kind in ("csv", "parquet"):
        folder = folder_with(tmp_path / kind, edges="source,target\n", schema=Schema(columns=CODES))
        (folder / "nodes.csv").unlink()
        getattr(whole, f"to_{kind}")(folder / f"nodes.{kind}", index=False)
        read[kind] = load(folder)
    x = read["csv"].x
    assert x.equal(read["parquet"].x)
    # And as texts of the first two rows alone, which have no neighbour that is empty.
    alone = pd.DataFrame(rows).astype(str).replace({"True": "true", "False": "false"})
    assert encode_table(Schema(columns=CODES), alone, "t").x.equal(x[:2])


def test_texts_of_whole_numbers_lose_a_point_and_keep_zeros_in_front():
    column = {"a": Category(values=["17", "-3", "0", "01067", "2.50"], other=True)}
    cells = ["17.0", "17.00", "-3.0", "-0.0", "0.0", "01067", "2.50", "1067", "01067.0", "2.5"]
    places = encode(column, cells).x.argmax(1).tolist()
    assert places == [0, 0, 1, 2, 2, 3, 4, 5, 5, 5]
    stated = Category(values=["17.0"])
    data = encode({"a": stated}, ["17", 17.0, 17])
    assert (data.columns, data.x.sum().item()) == (["a=17.0"], 3)
    assert "'17' more than once" in refusal(Category, values=["17", "17.0"])
    assert label_of(Label(task="binary", classes=[0, 1]), label=["1.0", "0"]).y.tolist() == [1, 0]


def test_long_ids_are_exact_or_refused():
    column = {"a": Category(buckets=4096)}
    for number in (10**15, 2**53 - 1):
        one, two, three = (
            encode(column, pd.Series([cell], dtype=object)).x
            for cell in (float(number), number, str(number))
        )
        assert one.equal(two)
        assert one.equal(three)
    for cell in (2.0**53, 1e17, -1e16, "1.2345678901234568e+16", "1e+16"):
        message = refusal(encode, column, pd.Series(["x", cell], dtype=object))
        assert "in row 2" in message
        assert "a float has rounded it" in message
    encode(column, ["1e+15", "1e16", "1.2345678901234568"])  # a code like others
    small = pd.Series([2.0**24 + 2], dtype="float32")
    cells = pd.DataFrame({"id": ["a"], "a": small})
    message = refusal(encode_table, Schema(columns=column), cells, Path("nodes.parquet"))
    assert "a float has rounded it" in message
    assert encode({"a": Number(low=0, high=1e20)}, [1e17]).x.shape == (1, 1)


def test_decimals_and_days_have_one_text():
    column = {"a": Category(values=["1.5", "2", "2020-01-02", "2020-01-02T03:00:00"])}
    cells = [
        *(Decimal(text) for text in ("1.50", "2.000", "2E+0", "1.5")),
        date(2020, 1, 2), datetime(2020, 1, 2), pd.Timestamp(2020, 1, 2),
        pd.Timestamp(2020, 1, 2, 3),
    ]  # fmt: skip
    data = encode(column, pd.Series(cells, dtype=object))
    assert data.x.argmax(1).tolist() == [0, 1, 1, 0, 2, 2, 2, 3]
    long = "123456789012345678901234567890.12345"
    assert encode({"a": Category(values=[long])}, [Decimal(long + "000")]).x.tolist() == [[1]]


@pytest.mark.parametrize(
    "kind", [Category(buckets=8, optional=True), Text(buckets=8, optional=True)]
)
def test_floats_in_memory_are_no_categories(kind):
    message = refusal(encode, {"a": kind}, [1067.0, None])
    assert "'a' is a" in message
    assert "holds numbers (floats)" in message
    assert "pd.read_csv(..., dtype=str)" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode({"a": kind}, [math.nan, math.nan])  # what read_csv makes of an empty column
        encode({"a": kind}, ["01067", None])


def test_whole_numbers_in_memory_are_said_unless_a_public_list_tells_them_apart():
    kinds = ["int64", "Int64", object]
    columns = [Category(buckets=8), Category(values=["1"], other=True), Text(buckets=8)]
    for column, kind in zip(columns, kinds, strict=True):
        with pytest.warns(Notice, match=r"the table holds numbers in a, .*dtype=str") as notices:
            encode({"a": column}, pd.Series([1, 2], dtype=kind))
        assert len(notices) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode({"a": Category(values=["1", "2"])}, [1, 2])
    message = refusal(encode, {"a": Category(values=["01067", "1067"])}, [1067])
    assert "holds numbers (integers)" in message


# --- kinds ----------------------------------------------------------------------------------------


def test_numbers_are_cut_to_the_range_and_counted_for_the_owner():
    with pytest.warns(Notice, match="'a' 2") as notices:
        data = encode({"a": Number(low=10, high=20)}, ["5", "10", "15", "20", "1e300"])
    assert data.x.flatten().tolist() == [-1, -1, 0, 1, 1]
    assert len(notices) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = encode({"a": Number(low=10, high=20)}, ["10", "11"])
    assert inside.public == data.public  # nothing on a certificate says how many were cut


def test_numbers_outside_may_be_refused():
    columns = {"a": Number(low=10, high=20, outside="refuse")}
    message = refusal(encode, columns, ["11", "21"])
    assert "from 10 to 20" in message
    assert "'21' in row 2" in message


def test_a_missing_number_is_a_public_constant():
    columns = {"a": Number(low=0, high=10, optional=True, missing=10)}
    assert encode(columns, ["", "0", None]).x.tolist() == [[1, 1], [-1, 0], [1, 1]]
    columns = {"a": Number(low=0, high=10, optional=True)}
    assert encode(columns, ["NA", "0"], empty=["NA"]).x.tolist() == [[0, 1], [-1, 0]]
    assert "'NA' in row 1" in refusal(encode, columns, ["NA", "0"])


def test_dates_count_from_a_public_origin():
    columns = {"a": Date(origin="2020-01-01", scale="2 weeks", low=-1, high=3, optional=True)}
    with pytest.warns(Notice, match="'a' 1"):
        data = encode(
            columns, ["2020-01-15", "2020-01-01 12:00", "2020-01-01T12:00+12:00", "1999-01-01", ""]
        )
    assert data.x[:, 0].tolist() == pytest.approx([1, 0.5 / 14, 0, -1, 1])
    form = Date(
        origin="2020-01-01", scale="1 day", format="%d.%m.%Y", optional=True, missing="2020-01-03"
    )
    assert encode({"a": form}, ["06.01.2020", ""]).x.tolist() == [[5, 0], [2, 1]]
    assert "'2020-01-06' in row 1" in refusal(encode, {"a": form}, ["2020-01-06"])


@pytest.mark.parametrize("cell", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:00:00-05:00"])
def test_a_time_that_utc_does_not_have_is_refused_in_a_line(cell):
    message = refusal(encode, {"a": Date(origin="2020-01-01")}, ["2020-01-01", cell])
    assert f"must be a date as 2020-12-31. Got {cell!r} in row 2" in message


@pytest.mark.parametrize("high", [5e-324, 1e-31])
def test_a_range_is_wide_enough_to_divide_by(high):
    message = refusal(Number, low=0, high=high)
    assert f"1e-30 wide or more. Got 0.0 to {high!r}" in message
    assert "1e-30" in refusal(Label, task="regression", column="v", low=0, high=high)
    assert encode({"a": Number(low=0, high=1e-29)}, ["0", "1e-29"]).x.tolist() == [[-1], [1]]


def test_after_training_no_way_out_asks_for_another_schema():
    columns = {
        "date": (Date(origin="2020-01-01"), "1.1.20", "a date"),
        "flag": (Flag(), "maybe", "yes or no"),
        "value": (Category(values=["x"]), "z", "categories"),
        "number": (Number(low=0, high=1), "old", "a finite number"),
        "range": (Number(low=0, high=1, outside="refuse"), "2", "from 0 to 1"),
        "empty": (Flag(), "", "filled in"),
    }
    label = Label(task="binary", column="l", classes=["a", "b"])
    for column, cell, rule in [*columns.values(), (Flag(), "yes", "classes")]:
        schema = Schema(columns={"c": column}, label=label)
        table = pd.DataFrame({"id": ["1"], "c": [cell], "l": ["c" if cell == "yes" else "a"]})
        before = refusal(encode_table, schema, table, "t")
        after = refusal(encode_table, schema.for_prediction(), table, "t")
        assert rule in before
        assert "schema is fixed" not in before
        assert " state " in before or " list it " in before
        assert rule in after
        assert after.endswith("this run's schema is fixed, and another one needs training anew.")
        assert " state " not in after.partition("instead;")[2]
        assert ("leave it empty" in after) == (cell == "yes")
    assert schema.for_prediction() == schema
    assert "fixed" not in schema.for_prediction().to_dict()


def test_unseen_categories_are_refused_or_have_a_column():
    message = refusal(encode, {"a": Category(values=["x", "y"])}, ["x", "z"])
    assert "'z' in row 2" in message
    assert "other = true" in message
    data = encode({"a": Category(values=["x", "y"], other=True)}, ["x", "z", " y"])
    assert data.columns == ["a=x", "a=y", "a is other"]
    assert data.x.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_hashes_are_the_same_on_every_machine_and_differ_between_columns():
    assert hash_word("zip", "01067") == 7_597_498_230_041_967_759
    cells = [f"{n}" for n in range(200)]
    two = {"a": Category(buckets=64), "b": Category(buckets=64)}
    data = encode(two, cells, b=cells)
    assert data.x[:, :64].sum(1).tolist() == [1] * 200
    assert not data.x[:, :64].equal(data.x[:, 64:])
    script = (
        "from graphveil.data.encoding import hash_word\n"
        "print([hash('zip'), *(hash_word('a', str(n)) % 64 for n in range(200))])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    plain, *hashes = eval(run.stdout)
    assert plain != hash("zip")  # Python's own depend on the process
    assert hashes == data.x[:, :64].argmax(1).tolist()


def test_flags_take_usual_words_or_stated_ones():
    assert encode({"a": Flag()}, ["Yes", "0", "TRUE", "off"]).x.flatten().tolist() == [1, 0, 1, 0]
    german = Flag(true=["ja"], false=["nein"])
    assert encode({"a": german}, ["JA", "nein"]).x.flatten().tolist() == [1, 0]
    assert "'yes' in row 1" in refusal(encode, {"a": german}, ["yes"])
    one = Schema.from_dict({"columns": {"a": {"kind": "flag", "true": "Y", "false": 0}}})
    table = pd.DataFrame({"id": [1, 2, 3], "a": ["y", "Y", 0]})
    assert encode_table(one, table, "t").x.flatten().tolist() == [1, 1, 0]
    assert "yes or no: Y; 0. Got 'x'" in refusal(
        encode_table, one, table.assign(a=["x", "Y", "0"]), "t"
    )
    assert "'y' in both" in refusal(Flag, true="Y", false=["y", "n"])


def test_texts_are_normalised_and_their_order_counts_for_nothing():
    x = encode({"a": Text(buckets=64)}, ["Café  pain", "pain, CAFE\u0301!", "pain"]).x
    assert x[0].equal(x[1])
    assert not x[0].equal(x[2])
    assert x.norm(dim=1).tolist() == pytest.approx([1, 1, 1])


def test_embedding_needs_a_model():
    if "sentence_transformers" in sys.modules:
        pytest.skip("sentence-transformers is installed")
    message = refusal(encode, {"a": Text(embed=True)}, ["pain"])
    assert "'a' has embed = true" in message
    assert "buckets" in message


def test_embedded_texts_have_the_model_s_columns(monkeypatch):
    from graphveil.data import text_features

    def sentences(texts, model):
        assert model == "mine"
        return np.array([[len(text), 1.0, 0.0] for text in texts], dtype=np.float32)

    monkeypatch.setattr(text_features, "sentences", sentences)
    data = encode({"a": Text(embed=True, model="mine", optional=True)}, ["pain", ""])
    assert data.columns == ["a#0", "a#1", "a#2", "a is missing"]
    assert data.x.tolist() == [[4, 1, 0, 0], [0, 1, 0, 1]]


def test_wide_rows_are_sparse():
    data = encode({"a": Category(buckets=4097)}, ["x", "y"])
    assert data.x.layout == torch.sparse_csr
    assert data.x.to_dense().sum(1).tolist() == [1, 1]
    assert len(data.columns) == 4097
    assert encode({"a": Category(buckets=4096)}, ["x"]).x.layout == torch.strided


# --- labels ---------------------------------------------------------------------------------------


def label_of(stated, **table):
    schema = Schema(columns={"a": Number(low=0, high=1)}, label=stated)
    rows = len(next(iter(table.values()))) if table else 1
    frame = pd.DataFrame({"id": range(rows), "a": ["0"] * rows, **table})
    return encode_table(schema, frame, "the table")


def test_a_class_is_looked_for():
    data = label_of(
        Label(task="binary", classes=["died", "alive"], positive="died"),
        label=["died", "", "alive"],
    )
    assert (data.class_names, data.y.tolist()) == (["alive", "died"], [1, -1, 0])


def test_ordinal_classes_keep_their_order():
    label = Label(task="ordinal", column="t", classes=[3, 2, 1])
    data = label_of(label, t=["1", "3", "", "2"])
    assert (data.y.tolist(), data.num_classes, data.task) == ([2, 0, -1, 1], 3, "ordinal")
    assert label_of(label, t=[1, 3]).y.tolist() == [2, 0]


def test_several_labels_by_columns_or_by_a_separator():
    by_columns = Label(task="multilabel", labels=["flu", "cold"], columns=["d1", "d2"])
    data = label_of(by_columns, d1=["1", "no", ""], d2=["0", "yes", ""])
    assert data.y.tolist() == [[1, 0], [0, 1], [-1, -1]]
    assert (data.class_names, data.num_classes) == (["flu", "cold"], 2)
    by_mark = Label(task="multilabel", column="d", labels=["flu", "cold"], separator=";", none="-")
    data = label_of(by_mark, d=["cold; flu", "-", "", "cold"])
    assert data.y.tolist() == [[1, 1], [0, 0], [-1, -1], [0, 1]]
    assert "'flu;pox' in row 1" in refusal(label_of, by_mark, d=["flu;pox"])
    assert "'d2'" in refusal(label_of, by_columns, d1=["1"])


def test_measurements_are_cut_to_their_range():
    label = Label(task="regression", column="v", low=0, high=10)
    with pytest.warns(Notice, match="'v' 1"):
        data = label_of(label, v=["3.5", "11", ""])
    assert data.y[:2].tolist() == [3.5, 10]
    assert data.y[2].isnan()
    assert (data.value_range, data.y.dtype) == ((0, 10), torch.float32)
    assert "num_classes" not in data
    assert "'high' in row 1" in refusal(label_of, label, v=["high"])


def test_without_its_column_there_is_no_label():
    data = label_of(Label(task="binary", classes=["a", "b"]))
    assert "y" not in data
    assert data.num_classes == 2


# --- the schema itself ----------------------------------------------------------------------------

MANY = Schema(
    columns={
        'odd "name" = 1': Number(low=-0.5, high=1e20, outside="refuse", optional=True, missing=3),
        "tab\there \x7f": Category(values=["a b", "ü", "\\"], other=True),
        "d": Date(origin="2020-01-01", scale="1.5 years", low=-2, high=2, format="%d.%m"),
        "f": Flag(true=["ja"], false=["nein"]),
        "t": Text(embed=True, model="mine"),
        "u": Text(buckets=9, optional=True),
        "i": Ignored(),
    },
    label=Label(task="multilabel", labels=["x", "y"], columns=["c1", "c2"]),
    unit="household",
    id="household nr",
    split="fold",
    owner="whose",
    empty=["NA", "-"],
    edges=Edges(source="a", target="b", directed=True),
)


@pytest.mark.parametrize("schema", [SCHEMA, MANY, Schema()], ids=["usual", "odd", "empty"])
def test_a_schema_is_read_as_it_was_written(schema, tmp_path):
    assert Schema.from_dict(schema.to_dict()) == schema
    assert Schema.from_dict(toml_of(schema.to_toml())) == schema
    path = tmp_path / "schema.toml"
    path.write_text(schema.to_toml(), encoding="utf-8")
    assert Schema.read(path) == schema
    assert list(Schema.read(path).columns) == list(schema.columns)


WRONG = {
    "unknown key": ("unti = 'x'", "unknown key 'unti'; it may hold unit"),
    "unknown kind": ("[columns.a]\nkind = 'nubmer'", "column 'a': 'kind'.*did you mean number"),
    "no kind": ("[columns.a]\nlow = 1", "column 'a' must have a 'kind'"),
    "no table": ("[columns]\na = 'flag'", "column 'a' must be a table"),
    "key of a kind": ("[columns.a]\nkind='number'\nlow=0\nhihg=1", "unknown key 'hihg'"),
    "no range": ("[columns.a]\nkind='number'\nlow=0", "column 'a' must have the key 'high'"),
    "empty range": ("[columns.a]\nkind='number'\nlow=1\nhigh=1", "high = 1 with low = 1"),
    "type": ("[columns.a]\nkind='number'\nlow='0'\nhigh=1", "'low' must be a number. Got '0'"),
    "no values": ("[columns.a]\nkind='category'", "either 'values'.*neither"),
    "twice": ("[columns.a]\nkind='category'\nvalues=['x','x']", "'x' more than once"),
    "other": ("[columns.a]\nkind='category'\nbuckets=4\nother=true", "'other'"),
    "scale": ("[columns.a]\nkind='date'\norigin='2020-01-01'\nscale='soon'", "'scale'.*'soon'"),
    "origin": ("[columns.a]\nkind='date'\norigin='1.1.2020'", "'origin'.*'1.1.2020'"),
    "missing": ("[columns.a]\nkind='number'\nlow=0\nhigh=1\nmissing=0", "optional = true"),
    "text": ("[columns.a]\nkind='text'", "'buckets'.*neither"),
    "task": ("[label]\ntask='rank'", "label: The 'task' parameter"),
    "no classes": ("[label]\ntask='binary'", "two classes.*Got 0"),
    "three": ("[label]\ntask='binary'\nclasses=['a','b','c']", "two classes.*Got 3"),
    "positive": ("[label]\ntask='binary'\nclasses=['a','b']\npositive='c'", "'positive'.*'c'"),
    "other task's": ("[label]\ntask='ordinal'\nclasses=['a','b']\nlow=1", "'low'.*'ordinal'"),
    "range": ("[label]\ntask='regression'\nlow=1", "'low' and 'high'"),
    "labels": ("[label]\ntask='multilabel'\nlabels=['a']", "'separator'"),
    "label as feature": (
        "[columns.label]\nkind='flag'\n[label]\ntask='binary'\nclasses=['a','b']",
        "'label' as the label and as a column of features",
    ),
    "id as feature": ("[columns.id]\nkind='flag'", r"'id' as the id.*delete \[columns.id\]"),
    "one name": (
        "[columns.a]\nkind='flag'\noptional=true\n[columns.'a is missing']\nkind='flag'",
        "'a is missing' from two",
    ),
    "unit": ("unit = '<b>'", "'unit'"),
    "no toml": ("unit", "is no TOML file"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_schema_gets_one_line_that_names_the_place(fault, tmp_path):
    text, message = WRONG[fault]
    path = tmp_path / "schema.toml"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=message) as caught:
        Schema.read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_draft_is_refused_until_it_is_filled_in():
    names = ["patient_id", "age", "sex", "born_at", "is_old", "notes", "foo", "outcome", "split"]
    text = Schema.draft(names, of_edges=["from", "to"])
    table = toml_of(text)
    assert table["id"] == "patient_id"
    kinds = {name: column["kind"] for name, column in table["columns"].items()}
    assert kinds == {
        "age": "number", "sex": "category", "born_at": "date", "is_old": "flag", "notes": "text",
        "foo": "?",
    }  # fmt: skip
    assert table["label"]["column"] == "outcome"
    assert table["edges"] == {"source": "from", "target": "to", "directed": "?"}
    assert toml_of(Schema.draft(names))["edges"] == {"directed": "?"}
    for line in text.splitlines():
        guessed = line.startswith("kind = ") and '"?"' not in line
        assert not guessed or "# ?" in line
    filled = {
        ("columns", "age"): {"kind": "number", "low": 0, "high": 1},
        ("columns", "sex"): {"kind": "category", "values": ["a"]},
        ("columns", "born_at"): {"kind": "date", "origin": "2020-01-01"},
        ("columns", "foo"): {"kind": "ignored"},
        ("label",): {"column": "outcome", "task": "binary", "classes": ["a", "b"]},
        ("edges",): {"source": "from", "target": "to", "directed": False},
        ("unit",): "patient",
    }
    for (*places, last), content in filled.items():
        message = refusal(Schema.from_dict, table)
        assert "not filled in" in message
        assert (repr(last) if places else last) in message
        inside = table
        for place in places:
            inside = inside[place]
        inside[last] = content
    assert Schema.from_dict(table).unit == "patient"


def test_a_draft_finds_words_inside_names():
    kinds = {
        "Date of Admission": "date", "dischargeDate": "date", "Age (y)": "number",
        "Patient Name": "ignored", "Phone Number": "ignored", "ICD-10": "category",
        "Postal Code": "category", "Blood Type": "category", "isSmoker": "flag",
        "Length of Stay": "number", "CRP [mg/l]": "number", "Clinical Notes": "text",
        "Candidate": "?", "Page": "?", "Diagnosis": "?",
    }  # fmt: skip
    table = toml_of(Schema.draft(["MRN", *kinds, "Outcome"]))
    assert table["id"] == "MRN"
    assert table["label"]["column"] == "Outcome"
    assert {name: column["kind"] for name, column in table["columns"].items()} == kinds
    for name in ("PatientID", "patient no", "case_id", "pid"):
        assert toml_of(Schema.draft(["a", name]))["id"] == name


def test_a_schema_is_read_without_pandas_or_torch():
    script = (
        "import sys\n"
        "from graphveil.data.schema import Schema\n"
        "Schema.from_dict({'columns': {'a': {'kind': 'flag'}}}); Schema.draft(['a'])\n"
        "print([name for name in ('torch', 'pandas', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_page_s_example_is_a_schema():
    page = (Path(__file__).parents[2] / "docs" / "schema.md").read_text()
    lines = page.partition("| kind |")[0].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("    unit = "))
    schema = Schema.from_dict(toml_of("\n".join(line.strip() for line in lines[start:])))
    assert schema.columns["age"] == Number(low=0, high=110)
    assert schema.label.class_names == ("no", "yes")
    assert schema.edges.ends == ("patient", "contact")


def test_a_split_or_label_may_be_a_feature(tmp_path):
    schema = Schema(columns={"split": Flag(), "label": Number(low=0, high=4)})
    nodes = "id,split,label\n1,yes,4\n2,no,0\n"
    data = load(folder_with(tmp_path / "t", nodes, "source,target\n", schema))
    assert data.x.tolist() == [[1, 1], [0, -1]]
    assert not {"y", "train_mask"} & set(data.keys())


def test_a_schema_in_a_saved_graph_is_no_path(tmp_path):
    from graphveil.runs import Source

    data = load(folder_with(tmp_path / "t"))
    torch.save(data, tmp_path / "g.pt")
    again = Source(data=str(tmp_path / "g.pt")).load()
    assert (again.schema, again.task) == (data.schema, "binary")
    data.schema = str(tmp_path / "t" / "schema.toml")
    torch.save(data, tmp_path / "g.pt")
    assert "must be a table" in refusal(Source(data=str(tmp_path / "g.pt")).load)


# --- certificates ---------------------------------------------------------------------------------


def test_certificates_list_the_schema(tmp_path):
    from graphveil.methods import Facts, LateGraph

    rows = [f"n{n},{'ab'[n % 2]},{n % 9},{'xy'[n % 3 == 0]}" for n in range(60)]
    schema = Schema(
        unit="visit",
        empty=["NA"],
        columns={
            "age": Number(low=0, high=9, optional=True),
            "kind": Category(values=["x", "y"]),
            "well": Flag(true="Y", false=["no", "N"], optional=True),
            "since": Date(origin="2020-01-01", optional=True, missing="2021-01-01"),
            "by": Category(values=["p"], optional=True),
            "room": Ignored(),
            "bed": Ignored(),
        },
        label=Label(task="binary", column="end", classes=["a", "b"]),
    )
    nodes = "\n".join(["id,end,age,kind,well,since,by", *(f"{row},,," for row in rows), ""])
    data = split(load(folder_with(tmp_path / "t", nodes, "source,target\nn1,n2\n", schema)))
    method = LateGraph(epsilon=8.0)
    public = method.plan(Facts.of(data)).on(data).public
    for line in (
        "the schema: a record is one visit",
        "the schema, column age: a number from 0 to 9, cut to it, or missing, which counts as 4.5",
        "the schema, column kind: one of x, y",
        "the schema, column well: yes (Y) or no (no, N), or missing, which counts as no",
        "the schema, column since: a date, in units of 365 days since 2020-01-01, from -10 to 10, "
        "cut to it, or missing, which counts as 2021-01-01",
        "the schema, column by: one of p, or missing, which counts as none of them",
        "the schema, not read: room, bed",
        "the schema, counted as empty cells: NA",
        "the schema, label end: one of a, b; b is looked for",
    ):
        assert line in public
    assert (data.schema, data.task, data.unit_name) == (schema.to_dict(), "binary", "visit")


def test_lines_are_plain_and_few():
    columns = {
        f"<c{n}|" * 30: Category(values=[f"`v{k}" * 20 for k in range(9)]) for n in range(99)
    }
    schema = Schema(columns=columns, label=Label(task="regression", column="v", low=0, high=2.5))
    lines = public_lines(schema)
    assert len(lines) == 42
    assert lines[-2] == "the schema, further columns: 59 of the kind category; all in settings.json"
    assert lines[-1] == "the schema, label v: a number from 0 to 2.5, cut to it"
    data = encode({"a": Flag()}, ["yes"])
    data.public = lines
    assert set(lines) <= set(public_of(data))  # refuses what is not plain, or too long


def test_what_the_schema_says_stays_with_a_part(tmp_path):
    from graphveil.graph.splits import separate

    data = load(folder_with(tmp_path / "t"))
    data.y = torch.tensor([1, 0, 1])
    for place, name in enumerate(("train_mask", "val_mask", "test_mask")):
        data[name] = torch.arange(3) == place
    for part in separate(data):
        assert (part.schema, part.task, part.unit_name) == (data.schema, "binary", "patient")
        assert part.columns == data.columns


# --- many graphs ----------------------------------------------------------------------------------


def test_graphs_have_the_label_and_nodes_the_columns(tmp_path):
    schema = Schema(
        columns={"kind": Category(values=["C", "N"]), "mass": Number(low=0, high=20)},
        label=Label(task="ordinal", column="grade", classes=["low", "high"]),
        id="name",
        unit="molecule",
    )
    tables = {
        "graphs.csv": "name,grade,source of it\na,high,x\nb,,y\n",
        "nodes.csv": "graph,id,mass,kind\na,1,12,C\na,2,14,N\nb,1,20,C\n",
        "edges.csv": "graph,source,target\na,1,2\n",
        "schema.toml": schema.to_toml(),
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    data = load(tmp_path)
    assert data.columns == ["kind=C", "kind=N", "mass"]
    assert data.x.tolist()[0] == pytest.approx([1, 0, 0.2])
    assert (data.y.tolist(), data.num_graphs, data.task) == ([1, -1], 2, "ordinal")
    (tmp_path / "nodes.csv").write_text("graph,id,mass,sort\na,1,12,C\na,2,14,N\nb,1,20,C\n")
    message = refusal(load, tmp_path)
    assert "'kind'" in message
    assert "'sort' instead" in message


def test_a_draft_proposes_whose_a_row_is():
    text = Schema.draft(["id", "patient_id", "age", "room_no"])
    line = '# owner = "patient_id"  # ? whose row it is, where one person has several'
    assert line in text.split("[columns")[0].splitlines()
    assert text.count("# owner") == 1
    assert "owner" not in Schema.draft(["patient_id", "age"])  # that is the id
    of_graphs = Schema.draft(["graph", "id", "a"], of_graphs=["id", "patient_id", "label"])
    assert line in of_graphs.splitlines()
    assert line in draft_types({"visit": ["id", "patient_id"]}, {}).splitlines()


def test_a_column_of_owners_that_is_not_there_is_named_with_the_closest():
    schema = Schema(columns={"a": Number(low=0, high=1)}, owner="patientid")
    nodes = pd.DataFrame({"id": ["1"], "a": [1], "patient_id": ["x"]})
    edges = pd.DataFrame({"source": [], "target": []})
    message = refusal(load, nodes=nodes, edges=edges, schema=schema)
    assert "'owner' must be a column of nodes. Got 'patientid'" in message
    assert "did you mean patient_id?" in message
