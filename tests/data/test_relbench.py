"""RelBench: databases of its shape, whose rows become nodes by their own cells."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from graphveil._errors import InvalidInputError
from graphveil.data import available, load, sizes_of
from graphveil.data.catalog import entry_of
from graphveil.data.relbench import relbench
from graphveil.graph.checks import public_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def day(text):
    return pd.Timestamp(text)


PEOPLE = pd.DataFrame(
    {
        "id": [0, 1, 2, 3, 4, 5],
        "age": [31.0, None, 55.0, 18.0, -4.0, 70.0],
        "member": [True, False, True, True, False, False],
        "points": pd.array([1, 2, None, 4, 5, 10**12], dtype="Int64"),
        "joined": [day("2001-01-01"), pd.NaT, *[day("2010-06-01")] * 4],
        "nation": ["French", "German", None, "French", "", "Swiss"],
        "bio": ["likes cars", "likes dogs", "", None, "cars and dogs", "x"],
        "club": pd.array([0, 1, None, 0, 1, 0], dtype="Int64"),
        "tags": [[1], [2, 3], [], [1], [2], [3]],
    }
)
LINKS = pd.DataFrame(
    {
        "a": pd.array([0, 1, 2, None, 3], dtype="Int64"),
        "b": pd.array([1, 2, 0, 3, 4], dtype="Int64"),
        "on": [*[day("2020-01-01")] * 3, day("2020-01-01"), day("2023-01-01")],
    }
)
TASK = {
    "train": [
        (0, "2019-01-01", 0),
        (0, "2019-06-01", 1),
        (1, "2019-01-01", 0),
        (2, "2019-01-01", 1),
    ],
    "val": [(1, "2021-01-01", 1), (4, "2021-01-01", 0)],
    "test": [(2, "2022-01-01", 0), (5, "2022-03-01", 1), (5, "2022-01-01", 0)],
}


def save(path, frame, key=None, foreign=None, time=None):
    """As RelBench saves a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {"fkey_col_to_pkey_table": foreign or {}, "pkey_col": key, "time_col": time}
    encoded = {name: json.dumps(value).encode() for name, value in metadata.items()}
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, **encoded}), path)


def save_people(base, people=PEOPLE):
    save(base / "db/people.parquet", people, "id", {"club": "clubs"}, "joined")


def save_task(base, task=TASK, name="win", **options):
    for part, rows in task.items():
        frame = pd.DataFrame(rows, columns=["who", "date", "won"])
        frame["date"] = pd.to_datetime(frame["date"])
        settings = {"foreign": {"who": "people"}, "time": "date"} | options
        save(base / f"tasks/{name}/{part}.parquet", frame, **settings)


@pytest.fixture
def base(root):
    base = root / "races"
    save_people(base)
    save(base / "db/clubs.parquet", pd.DataFrame({"id": [0, 1], "name": ["x", "y"]}), "id")
    save(base / "db/friends.parquet", LINKS, None, {"a": "people", "b": "people"}, "on")
    once = pd.DataFrame({"who": [0], "club": [1]})
    save(base / "db/visits.parquet", once, None, {"who": "people", "club": "clubs"})
    save_task(base)
    return base


def read(root, variant="races:win"):
    return relbench(f"relbench:{variant}", root, variant)


def refusal(root, variant="races:win"):
    with pytest.raises(InvalidInputError) as caught:
        read(root, variant)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_of_the_entities_table_are_nodes(root, base):
    data = load("relbench:races:win", root=root)
    assert data.num_nodes == 6
    assert (data.task, data.num_classes, data.directed) == ("binary", 2, False)
    column = {name: data.x[:, place] for place, name in enumerate(data.columns)}
    age = np.array([31, 0, 55, 18, -4, 70])
    squashed = np.sign(age) * np.log1p(np.abs(age))
    np.testing.assert_array_equal(column["age"].numpy(), squashed.astype(np.float32))
    assert column["age missing"].tolist() == [0, 1, 0, 0, 0, 0]
    member = np.array([1, 0, 1, 1, 0, 0]) * np.log(2)
    np.testing.assert_allclose(column["member"], member, rtol=1e-6)
    assert column["points missing"].tolist() == [0, 0, 1, 0, 0, 0]
    assert column["joined missing"].tolist() == [0, 1, 0, 0, 0, 0]
    np.testing.assert_allclose(column["joined"][0], np.log1p(366 / 365.25), rtol=1e-6)
    nation = torch.stack([column[f"nation {place}"] for place in range(64)], dim=1)
    assert torch.equal(nation[0], nation[3])
    assert not torch.equal(nation[0], nation[1])
    assert nation.norm(dim=1).tolist() == [1, 1, 0, 1, 0, 1]
    assert data.x.shape[1] == 2 + 2 + 2 + 2 + 64 + 64
    assert not any(name.startswith(("id", "club", "tags")) for name in data.columns)
    lines = " ".join(public_of(data))
    for part in ("squashed", "hashed into 64", "years since 2000", "left out: tags", "timestamps"):
        assert part in lines


def test_the_last_part_and_time_that_name_a_node_count(root, base):
    data = read(root)
    assert data.y.tolist() == [1, 1, 0, -1, 0, 1]
    assert data.train_mask.nonzero()[:, 0].tolist() == [0]
    assert data.val_mask.nonzero()[:, 0].tolist() == [1, 4]
    assert data.test_mask.nonzero()[:, 0].tolist() == [2, 5]


def test_links_are_those_before_the_test(root, base):
    edges = sorted(map(tuple, read(root).edge_index.t().tolist()))
    assert edges == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]  # not 3 and 4, of 2023
    save(base / "db/friends.parquet", LINKS, None, {"a": "people", "b": "people"})
    assert read(root).num_edges == 8
    (base / "db/friends.parquet").unlink()
    assert read(root).edge_index.shape == (2, 0)


def test_a_row_does_not_depend_on_others(root, base):
    before = read(root)
    people = PEOPLE.copy()
    for name, cell in {"age": 1e9, "member": False, "nation": "Danish", "bio": "likes x"}.items():
        people.loc[3, name] = cell
    save_people(base, people)
    after = read(root)
    others = torch.arange(6) != 3
    assert torch.equal(before.x[others], after.x[others])
    assert not torch.equal(before.x[3], after.x[3])
    assert before.columns == after.columns
    (base / "db/friends.parquet").unlink()
    save_people(base, PEOPLE[::-1])
    assert torch.equal(read(root).x.flip(0), before.x)
    save_people(base, PEOPLE.iloc[[0, 2]])
    save_task(
        base, {"train": TASK["train"][:1], "val": TASK["train"][1:2], "test": TASK["test"][:1]}
    )
    few = read(root)
    assert torch.equal(few.x, before.x[[0, 2]])
    assert few.columns == before.columns


def test_other_targets_are_stated_by_name(root, base):
    places = {
        part: [(who, date, 3 * won + 1) for who, date, won in rows] for part, rows in TASK.items()
    }
    save_task(base, places, name="place")
    message = refusal(root, "races:place")
    assert "classes from 0 to 1. Got 4 at node 0" in message
    assert "':0..10'" in message
    data = read(root, "races:place:5")
    assert (data.task, data.num_classes) == ("multiclass", 5)
    assert data.y.tolist() == [4, 4, 1, -1, 1, 4]
    data = read(root, "races:place:1..40")
    assert (data.task, data.value_range, data.y.dtype) == ("regression", (1.0, 40.0), torch.float32)
    np.testing.assert_array_equal(data.y, [4, 4, 1, np.nan, 1, 4])
    assert "num_classes" not in data


def test_targets_may_be_true_false_or_missing(root, base):
    task = {
        "train": [(0, "2019-01-01", True), (1, "2019-01-01", None), (3, "2019-01-01", False)],
        "val": [(4, "2021-01-01", False)],
        "test": [(5, "2022-01-01", True)],
    }
    save_task(base, task)
    data = read(root)
    assert data.y.tolist() == [1, -1, -1, 0, 0, 1]
    assert data.train_mask.nonzero()[:, 0].tolist() == [0, 3]


def test_keys_may_be_texts(root, base):
    (base / "db/friends.parquet").unlink()
    save_people(base, PEOPLE.assign(id=[f"p{n}" for n in range(6)]))
    texts = {part: [(f"p{w}", d, y) for w, d, y in rows] for part, rows in TASK.items()}
    save_task(base, texts)
    assert read(root).y.tolist() == [1, 1, 0, -1, 0, 1]


def test_a_table_without_columns_is_a_column_of_ones(root, base):
    save(base / "db/people.parquet", PEOPLE[["id"]], "id")
    data = read(root)
    assert data.x.tolist() == [[1.0]] * 6
    assert data.columns == ["one"]


def test_damaged_and_other_files_are_one_line(root, base):
    save_task(base, {**TASK, "val": [(9, "2021-01-01", 1)]})
    assert "val.parquet: who in row 1 is no known key" in refusal(root)
    save_task(base, foreign={"who": "people", "date": "clubs"})
    assert "no links" in refusal(root)
    save_task(base, foreign={"who": "drivers"})
    assert "no db/drivers.parquet" in refusal(root)
    save_task(base, time=None)
    assert "a time" in refusal(root)
    save_task(base, {part: [(w, d, [y]) for w, d, y in rows] for part, rows in TASK.items()})
    assert "one target that is a number" in refusal(root)
    save_task(base)
    save_people(base, PEOPLE.assign(won=1))
    assert "the target won is a column of people" in refusal(root)
    save_people(base, PEOPLE.assign(id=[0, 1, 2, 3, 4, 4]))
    assert "each once" in refusal(root)
    save_people(base, PEOPLE.assign(age=np.inf))
    assert "age is infinite in row 1" in refusal(root)
    pq.write_table(pa.Table.from_pandas(PEOPLE), base / "db/people.parquet")
    assert "must have the metadata" in refusal(root)
    (base / "db/people.parquet").write_bytes(b"PAR1 and no more")
    assert "cannot be read" in refusal(root)
    (base / "db/people.parquet").unlink()
    assert "no db/people.parquet" in refusal(root)


def test_absent_databases_are_one_line(root, base):
    message = refusal(root, "rel-f1:driver-dnf")
    assert "get_task('rel-f1', 'driver-dnf', download=True)" in message
    assert "~/.cache/relbench" in message
    for variant in ("", "races", "races:win:1", "../x:y", "races:win:2:3"):
        assert "may be followed by" in refusal(root, variant)
    assert available("relbench:races:win", root)
    assert not available("relbench:races:place", root)


def test_names_say_what_is_public_beforehand():
    assert sizes_of("relbench:rel-f1:driver-dnf").num_classes == 2
    assert entry_of("relbench:rel-f1:driver-dnf").task == "binary"
    assert sizes_of("relbench:rel-stack:badges:3").num_classes == 3
    assert entry_of("relbench:rel-f1:driver-position:1..40").task == "regression"
    assert entry_of("relbench").task is None
