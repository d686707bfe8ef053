"""GraphLand: folders of its shape, features made of a node's own cells, targets stated by name."""

import io
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch

from graphveil._errors import InvalidInputError
from graphveil.data import available, load, sizes_of
from graphveil.data._plain_yaml import parse_yaml
from graphveil.data._variants import Target, parse_graphland, parse_target
from graphveil.data.catalog import entry_of
from graphveil.data.graphland import graphland
from graphveil.graph.checks import public_of

INFO = """\
dataset_name: shop
task: multiclass_classification
metric: accuracy
num_classes: 3
numerical_features_names:
- price
- share
categorical_features_names:
- colour
- 'shop: kind'
fraction_features_names: [share]
target_name: topic
graph_is_directed: false
has_unlabeled_nodes: true
has_nans_in_numerical_features: true
"""
N = 7


def write_set(folder, info=INFO, targets=(0, 1, 2, 0, 1, None, 2), edges=((0, 1), (1, 2), (6, 0))):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "info.yaml").write_text(info)
    features = pd.DataFrame(
        {
            "price": [10.5, -3, None, 0, 1e9, 7, 2],
            "share": [0.5, 1, 0, 0.25, None, 1, 0],
            "colour": [0, 1, 2, 33, 1, 0, 5],
            "shop: kind": [1, 0, 1, 0, 1, 0, 1],
            "unused": list("abcdefg"),
        }
    )
    features.to_csv(folder / "features.csv", index_label="node_id")
    pd.DataFrame({"topic": targets}).to_csv(folder / "targets.csv", index_label="node_id")
    for split, cuts in {"RL": (3, 5), "RH": (4, 5)}.items():
        place = np.arange(N)
        masks = {
            "train": place < cuts[0],
            "val": (place >= cuts[0]) & (place < cuts[1]),
            "test": place >= cuts[1],
        }
        pd.DataFrame(masks).to_csv(folder / f"split_masks_{split}.csv", index_label="node_id")
    links = pd.DataFrame(list(edges), columns=["source", "target"])
    links.to_csv(folder / "edgelist.csv", index=False)
    return folder


def read(root, variant):
    return graphland(f"graphland:{variant}", root, variant)


def refusal(root, variant):
    with pytest.raises(InvalidInputError) as caught:
        read(root, variant)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_a_graph_with_rows_of_its_own_cells(root):
    write_set(root / "shop")
    data = load("graphland:shop", root=root)
    assert data.y.tolist() == [0, 1, 2, 0, 1, -1, 2]
    assert (data.num_classes, data.task, data.directed) == (3, "multiclass", False)
    assert data.train_mask.nonzero()[:, 0].tolist() == [0, 1, 2]
    assert data.test_mask.nonzero()[:, 0].tolist() == [6]  # the other has no target
    assert data.is_undirected()
    assert data.num_edges == 6
    assert data.columns[:5] == ["price", "price missing", "share", "share missing", "colour 0"]
    assert data.x.shape == (7, 4 + 32 + 32)
    expected = np.sign([10.5, -3, 0, 0, 1e9, 7, 2]) * np.log1p([10.5, 3, 0, 0, 1e9, 7, 2])
    np.testing.assert_array_equal(data.x[:, 0].numpy(), expected.astype(np.float32))
    assert data.x[:, 1].tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert data.x[:, 2].tolist() == [0.5, 1, 0, 0.25, 0, 1, 0]
    assert data.x[:, 4:36].argmax(1).tolist() == [0, 1, 2, 1, 1, 0, 5]  # 33 is 1 modulo 32
    lines = " ".join(public_of(data))
    for part in ("squashed", "one of 32 columns", "the split RL", "price"):
        assert part in lines
    assert "unused" not in lines


def test_its_splits_go_by_name(root):
    write_set(root / "shop")
    assert int(read(root, "shop:RH").train_mask.sum()) == 4
    assert "split_masks_TH.csv" in refusal(root, "shop:TH")
    assert not available("graphland:shop:TH", root)
    assert available("graphland:shop:RH", root)


def test_as_pyg_keeps_the_files(root):
    write_set(root / "shop" / "raw" / "shop")
    assert read(root, "shop").num_nodes == 7


def test_a_row_does_not_depend_on_others(root):
    whole = read(write_set(root / "shop").parent, "shop")
    for file in ("features", "targets", "split_masks_RL"):
        path = root / "shop" / f"{file}.csv"
        table = pd.read_csv(path)
        table.iloc[[0, 2]].to_csv(path, index=False)
    pd.DataFrame(columns=["source", "target"]).to_csv(root / "shop" / "edgelist.csv", index=False)
    few = read(root, "shop")
    assert torch.equal(whole.x[[0, 2]], few.x)
    assert torch.equal(whole.y[[0, 2]], few.y)
    assert few.columns == whole.columns
    features = pd.read_csv(root / "shop" / "features.csv")
    features.loc[1, ["price", "share", "colour", "shop: kind"]] = [-1e12, 0.9, 77, 5]
    features.to_csv(root / "shop" / "features.csv", index=False)
    other = read(root, "shop")
    assert torch.equal(other.x[0], few.x[0])
    assert not torch.equal(other.x[1], few.x[1])


def test_many_rows_are_squashed_bit_by_bit_as_alone():
    from graphveil.data._row_columns import number_columns

    values = np.random.default_rng(0).normal(size=1003) * 1e4
    together = number_columns("a", values).values
    alone = [number_columns("a", values[place : place + 1]).values[0] for place in range(1003)]
    assert together.tobytes() == np.stack(alone).tobytes()
    shifted = number_columns("a", values[5:].copy()).values
    assert together[5:].tobytes() == shifted.tobytes()


def test_stated_numbers_of_categories_are_columns(root):
    write_set(root / "shop", INFO + "num_categories:\n  colour: 34\n  'shop: kind': 2\n")
    data = read(root, "shop")
    assert data.x.shape == (7, 4 + 34 + 2)
    assert data.x[3, 4 + 33] == 1
    assert any("how many categories" in line for line in data.public)
    assert not any("one of 32" in line for line in data.public)
    write_set(root / "shop", INFO + "num_categories:\n  colour: 33\n")
    assert "colour must be a whole number below 33, got 33 in row 4" in refusal(root, "shop")


def test_directed_links_stay_as_they_are(root):
    write_set(root / "shop", INFO.replace("directed: false", "directed: true"))
    data = load("graphland:shop", root=root)
    assert data.edge_index.tolist() == [[0, 1, 6], [1, 2, 0]]
    assert data.directed


def regression(info=INFO):
    return info.replace("multiclass_classification", "regression").replace("num_classes: 3\n", "")


def test_a_regression_needs_a_public_range(root):
    values = (0.5, 1.25, -2, 30, None, 4, 5)
    write_set(root / "shop", regression(), targets=values)
    message = refusal(root, "shop")
    assert "range of its target" in message
    assert "'graphland:shop:0..10'" in message
    data = read(root, "shop:RL:-5..10")
    assert (data.task, data.value_range) == ("regression", (-5.0, 10.0))
    assert data.y.dtype == torch.float32
    np.testing.assert_array_equal(data.y.numpy(), np.array(values, dtype=np.float32))
    assert "num_classes" not in data
    assert "30" not in " ".join(data.public)
    assert int(data.val_mask.sum()) == 1  # the unlabelled one is in no part
    assert "range of its target" in refusal(root, "shop:3")


def test_classes_are_stated_and_never_counted(root):
    info = INFO.replace("num_classes: 3\n", "")
    write_set(root / "shop", info)
    assert "'graphland:shop:RH:21'" in refusal(root, "shop:RH")
    assert read(root, "shop:RH:5").num_classes == 5
    assert "classes from 0 to 1" in refusal(root, "shop:2")
    assert "no range" in refusal(root, "shop:0..1")
    write_set(root / "shop")
    assert "says 3 classes, the name 4" in refusal(root, "shop:4")
    write_set(root / "shop", info.replace("multiclass", "binary"), targets=(0, 1, 1, 0, 1, None, 0))
    data = read(root, "shop")
    assert (data.task, data.num_classes) == ("binary", 2)


def test_missing_cells_are_refused_where_there_are_said_to_be_none(root):
    write_set(root / "shop", INFO.replace("numerical_features: true", "numerical_features: false"))
    assert "price is empty in row 3" in refusal(root, "shop")


@pytest.mark.parametrize(
    "file, old, new, reason",
    [
        ("info.yaml", "task: multi", "task: any", "must have a task"),
        ("info.yaml", "graph_is_directed: false", "", "graph_is_directed"),
        ("info.yaml", "target_name: topic", "target_name: other", "no column 'other'"),
        ("info.yaml", "- colour", "- shade", "no column 'shade'"),
        ("info.yaml", "numerical_features_names:", "num_features_names:", "numerical_features"),
        ("info.yaml", "metric: accuracy", "metric: &a accuracy", "line 3"),
        ("features.csv", "10.5", "dear", "price is no number in row 1"),
        ("features.csv", "0,10.5,0.5,0,", "0,10.5,0.5,0.5,", "colour must be a whole number"),
        ("targets.csv", "0,0.0\n1,1.0", "1,1.0\n0,0.0", "in their order"),
        ("targets.csv", "\n6,2.0", "", "in their order"),
        ("targets.csv", "2,2.0", "2,0.5", "classes from 0 to 2"),
        ("split_masks_RL.csv", "train", "training", "no column 'train'"),
        ("split_masks_RL.csv", "0,True", "0,perhaps", "True or False"),
        ("edgelist.csv", "6,0", "7,0", "not there"),
        ("edgelist.csv", "6,0", "6,", "empty cell"),
        ("edgelist.csv", "source,target\n0,1\n1,2\n6,0", "a,b,w\n0,1,2", "two columns"),
    ],
)
def test_damaged_files_are_one_line(root, file, old, new, reason):
    path = write_set(root / "shop") / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert reason in refusal(root, "shop")


def test_absent_folders_are_one_line(root):
    assert "tolokers-2" in refusal(root, "shop")
    for variant in ("", "../shop", "shop:XX", "shop:RL:RH", "shop:RL:5..5", "shop:RL:1"):
        assert "may be followed by" in refusal(root, variant)
    assert "could not be downloaded" in refusal(root, "tolokers-2")


def test_the_benchmarks_sets_are_downloaded_from_their_record(root, tmp_path, serve):
    folder = write_set(tmp_path / "server" / "hm-categories")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.iterdir():
            file.write(path, path.relative_to(tmp_path / "server"))
    asked = serve(lambda url: archive.getvalue())
    assert read(root, "hm-categories").num_nodes == 7
    assert read(root, "hm-categories").num_nodes == 7
    assert asked == ["https://zenodo.org/records/16895532/files/hm-categories.zip"]
    assert not list(root.iterdir())


def test_names_say_what_is_public_beforehand():
    assert sizes_of("graphland:tolokers-2").num_records == 11_758
    assert sizes_of("graphland:tolokers-2:RH").num_classes == 2
    assert sizes_of("graphland:hm-categories:RL:21").num_classes == 21
    assert sizes_of("graphland:pokec-regions").directed
    assert entry_of("graphland:hm-prices:0..5").task == "regression"
    assert entry_of("graphland:mine").task is None
    assert parse_target("-1.5..2e3") == Target(value_range=(-1.5, 2000.0))
    for text in ("1", "0", "2..1", "a", "..", "1..", "0...5", "1e999..2", "0..1e999"):
        assert parse_target(text) is None
    assert parse_graphland("a:TH").split == "TH"


# --- info.yaml ------------------------------------------------------------------------------------


def test_plain_yaml_is_read_as_the_library_reads_it():
    yaml = pytest.importorskip("yaml")
    table = {
        "dataset_name": "shop",
        "names": ["a", "b c", "it's", "no: pair", "1", "x#y", "null", "- dash"],
        "empty": [],
        "sizes": {"a": 3, "b c": 4},
        "flag": True,
        "number": 2.5,
        "nothing": None,
    }
    for style in (False, None):
        assert parse_yaml(yaml.safe_dump(table | {"sizes": 1}, default_flow_style=style)) == (
            table | {"sizes": 1}
        )
    assert parse_yaml(yaml.safe_dump(table)) == table
    long = {"names": [f"a_long_name_of_a_column_{n}" for n in range(40)], "last": 1}
    assert parse_yaml(yaml.safe_dump(long, default_flow_style=None)) == long
    assert parse_yaml("# a comment\n---\na: 1  # one\nb:\n  # more\n  - x # y\n") == yaml.safe_load(
        "# a comment\n---\na: 1  # one\nb:\n  # more\n  - x # y\n"
    )
    assert parse_yaml(INFO) == yaml.safe_load(INFO)


@pytest.mark.parametrize(
    "text",
    ["- a", "a", "a: 1\na: 2", "a: {b: 1}", "a: [b, [c]]", "a: [b", "a: |\n  b", "a: !x 1", "a: *b",
     "a: 1\n  - b", "a:\n- b\n  c: 1", "a: b: c"],
)  # fmt: skip
def test_other_yaml_is_refused(text):
    with pytest.raises(ValueError, match="line"):
        parse_yaml(text)
