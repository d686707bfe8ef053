"""Which classes there are is stated, or read off labels that look like classes; never guessed."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data import classes, load
from graphveil.data.class_list import parse_classes
from graphveil.graph.checks import class_source_of, public_of
from graphveil.graph.public_lines import DECLARED, NUMBER_READ_OFF, UNNAMED


@pytest.fixture
def folder(tmp_path):
    """Two tables whose column of labels is given."""

    def call(labels, end="csv"):
        frame = pd.DataFrame({"id": range(len(labels)), "label": labels, "a": 1.0})
        path = tmp_path / f"nodes.{end}"
        frame.to_csv(path, index=False) if end == "csv" else frame.to_parquet(path, index=False)
        (tmp_path / "edges.csv").write_text("source,target\n")
        return tmp_path

    return call


def refusal(path, **stated):
    with pytest.raises(InvalidInputError) as caught:
        load(path, **stated)
    assert "\n" not in str(caught.value)
    return str(caught.value)


COLUMN = "the names of the feature columns: a"
COLOURS = ["red", "blue", "red", None] * 10


def test_names_that_nobody_stated_are_numbered_and_forgotten(folder):
    for stated in (None, 2):
        data = load(folder(COLOURS), classes=stated)
        assert (data.y[:4].tolist(), data.num_classes) == ([1, 0, 1, -1], 2)
        assert "class_names" not in data
        assert public_of(data) == (COLUMN, UNNAMED)
        assert class_source_of(data) == "names"
    assert "2 names where --classes states 3" in refusal(folder(COLOURS), classes=3)


@pytest.mark.parametrize("stated", [None, 3])
def test_a_slip_among_class_numbers_is_not_a_class(folder, stated):
    message = refusal(folder(["0", "1", "2"] * 20 + ["O"]), classes=stated)
    assert "'label' must be a class number, as others are. Got 'O' in row 61" in message
    assert "--classes a,b,c" in message
    mixed = load(folder(["38", "40", "L"] * 20), classes="38,40,L")
    assert mixed.y[:3].tolist() == [0, 1, 2]
    assert "'0.5' in row 1" in refusal(folder(["0.5", "1.5"] * 20), classes=stated)


def test_a_stated_list_numbers_the_classes_whoever_is_there(folder):
    stated = ["blue", "green", "red"]
    data = load(folder(COLOURS), classes=stated)
    assert data.y[:4].tolist() == [2, 0, 2, -1]
    assert (data.class_names, data.num_classes) == (stated, 3)
    assert public_of(data) == ("the names of the classes: blue, green, red", COLUMN)
    # Sorting the names that occur would give everybody another number for one label more.
    assert load(folder([*COLOURS[:-1], "green"]), classes=stated).y[:4].tolist() == [2, 0, 2, -1]
    assert load(folder([2, 0, 1, -1]), classes=stated).y.tolist() == [2, 0, 1, -1]
    message = refusal(folder([*COLOURS, "pink"]), classes=stated)
    assert "one of the stated classes, blue, green, red. Got 'pink' in row 41" in message
    assert "'3' in row 1" in refusal(folder([3, 0]), classes=stated)


def test_a_name_that_is_a_number_is_a_name(folder):
    data = load(folder([10, 9, 10]), classes="9,10")
    assert (data.y.tolist(), data.class_names) == ([1, 0, 1], ["9", "10"])
    assert "'0' in row 1" in refusal(folder([0, 9]), classes="9,10")


def test_names_in_the_file_are_taken_where_the_owner_says_that_they_are_public(folder):
    data = load(folder(COLOURS), classes="public")
    assert (data.class_names, data.y[:4].tolist()) == (["blue", "red"], [1, 0, 1, -1])
    names = "the names of the classes: blue, red"
    assert public_of(data) == (names, COLUMN, DECLARED)
    assert class_source_of(data) == "declared"


def test_a_number_that_was_read_off_the_labels_is_said_to_be(folder):
    data = load(folder([0, 1, 2] * 10))
    assert (data.num_classes, public_of(data)) == (3, (COLUMN, NUMBER_READ_OFF))
    assert class_source_of(data) == "number"
    stated = load(folder([0, 1, 2] * 20), classes=4)
    assert (public_of(stated), class_source_of(stated)) == ((COLUMN,), "stated")
    bare = Data(x=torch.ones(2, 1), edge_index=torch.empty(2, 0).long(), y=torch.tensor([0, 1]))
    assert (public_of(bare), class_source_of(bare)) == ((NUMBER_READ_OFF,), "number")


@pytest.mark.parametrize("stated", [None, 2])
@pytest.mark.parametrize("label", [2**63, -(2**64), 1e300, 0.5, float("inf")])
def test_a_label_that_is_no_class_number_is_not_taken_for_unlabelled(folder, label, stated):
    labels = ["0", "1"] * 10 + [str(label)]
    assert f"{str(label)!r} in row 21" in refusal(folder(labels), classes=stated)


@pytest.mark.parametrize("labels", [[f"p{n}" for n in range(60)], list(range(60))])
def test_labels_that_look_like_identifiers_are_refused(folder, labels, tmp_path):
    for stated in (None, "public"):
        message = refusal(folder(labels), classes=stated)
        assert "at most 1,000, and one for every 10" in message
        assert "--classes N or --classes a,b,c" in message
        assert "60" not in message.removeprefix(str(tmp_path))  # it was counted in private labels


@pytest.mark.parametrize("number, labels", [(4, [0, 1, 2] * 10), (3, ["a", "b", "c"] * 3)])
def test_a_stated_number_that_suits_identifiers_is_asked_about(folder, number, labels):
    with pytest.warns(classes.Notice, match="fewer than ten records for each class: is 'label'"):
        load(folder(labels), classes=number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder(labels * 10), classes=number)


def test_many_classes_are_refused_unless_they_are_stated(folder):
    labels = list(range(1001)) * 10
    assert "Got more" in refusal(folder(labels))
    assert load(folder(labels), classes=1001).num_classes == 1001
    names = [f"c{n}" for n in labels]
    assert "Got more" in refusal(folder(names), classes="public")
    assert load(folder(names), classes=[f"c{n}" for n in range(1001)]).y[1000] == 1000
    assert load(folder(list(range(1000)) * 10)).num_classes == 1000
    # Unlabelled records do not make identifiers look like classes.
    assert "Got more" in refusal(folder([*range(40), *[None] * 400]))


def test_columns_of_parquet_are_read_as_they_are_written(folder):
    pytest.importorskip("pyarrow")
    gaps = folder([1.0, None, 0.0], "parquet")
    assert load(gaps, classes=2).y.tolist() == [1, -1, 0]
    assert load(gaps, classes=["no", "yes"]).y.tolist() == [1, -1, 0]
    assert load(gaps, classes="1,0").y.tolist() == [0, -1, 1]
    truths = folder([True, False, True], "parquet")
    assert load(truths).y.tolist() == [1, 0, 1]
    assert load(truths, classes="public").class_names == ["False", "True"]


@pytest.fixture
def arrays(tmp_path):
    def call(**more):
        y = np.arange(40) % 3
        np.savez(
            tmp_path / "g.npz", x=np.ones((40, 1)), edge_index=np.zeros((2, 0), int), y=y, **more
        )
        return tmp_path / "g.npz"

    return call


def test_what_arrays_state_themselves_must_agree_with_what_is_stated(arrays):
    assert public_of(load(arrays())) == (NUMBER_READ_OFF,)
    named = load(arrays(), classes="a,b,c")
    assert (named.class_names, named.num_classes) == (["a", "b", "c"], 3)
    assert load(arrays(class_names=["a", "b", "c"])).num_classes == 3
    assert load(arrays(class_names=["a", "b", "c"]), classes=3).class_names == ["a", "b", "c"]
    assert "at most 1" in refusal(arrays(), classes=2)
    for faults, stated in (
        ({"class_names": ["a", "b", "c"]}, ["a", "c", "b"]),
        ({"class_names": ["a", "b", "c"]}, 4),
        ({"num_classes": 3}, 4),
        ({"class_names": ["a", "b", "c"], "num_classes": 4}, None),
    ):
        assert "must agree" in refusal(arrays(**faults), classes=stated)


@pytest.mark.parametrize(
    "odd",
    [
        {"class_names": 5},
        {"class_names": [1, 2, 3]},
        {"class_names": torch.ones(3)},
        {"num_classes": torch.ones(2)},
        {"num_classes": "three"},
        {"directed": 1},
        {"directed": torch.ones(2)},
    ],
)
def test_odd_statements_in_a_file_are_one_line(tmp_path, odd):
    y = torch.arange(40) % 3
    data = Data(x=torch.ones(40, 1), edge_index=torch.empty(2, 0).long(), y=y)
    torch.save(Data.from_dict({**data.to_dict(), **odd}), tmp_path / "g.pt")
    for stated in ({}, {"classes": 3, "directed": True}):
        assert str(tmp_path) in refusal(tmp_path / "g.pt", **stated)


def test_whether_edges_have_a_direction_is_stated_and_not_measured(arrays, folder, tmp_path):
    assert "directed" not in load(arrays())
    assert load(arrays(), directed=True).directed is True
    assert load(arrays(directed=False)).directed is False
    assert "as the file says" in refusal(arrays(directed=False), directed=True)
    assert load(folder([0, 1])).directed is False  # a line of a table goes both ways


@pytest.mark.parametrize(
    "text, found",
    [
        ("3", 3),
        ("public", "public"),
        ("red, blue", ("red", "blue")),
        ('"red, dark",blue', ("red, dark", "blue")),
        (["a", "b"], ("a", "b")),
        (None, None),
        (7, 7),
    ],
)
def test_a_statement_is_a_number_a_list_or_a_word(text, found):
    assert parse_classes(text) == found
    assert parse_classes(found) == found


@pytest.mark.parametrize(
    "text", ["red", "", "1", "x" * 200_000, 1, 0, True, 2.5, ["a"], ["a", ""], ["a", 1], "a,a"]
)
def test_a_statement_that_is_none_of_them_is_refused(text):
    with pytest.raises(InvalidInputError, match="'classes'"):
        parse_classes(text)


def test_the_catalog_knows_its_own_classes():
    for stated in ({"classes": 6}, {"directed": False}):
        with pytest.raises(InvalidInputError, match="files of your own"):
            load("social", **stated)
    data = load("social")
    assert (data.num_classes, data.directed, public_of(data)) == (6, False, ())
