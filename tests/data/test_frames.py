"""Tables in memory: every kind of table gives the same graph, and wrong ones a line each."""

import sys
import tomllib
import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import graphveil
from graphveil._errors import InvalidInputError
from graphveil.data import from_networkx, load
from graphveil.data.class_list import Notice
from graphveil.data.frames import as_frame, frames_to_data
from graphveil.data.schema import Schema
from graphveil.graph.splits import separate, split
from graphveil.methods.settings import setting_fields

CLASSES = ["red", "blue"]
NODES = {
    "id": ["ann", "bob", "cat", "01", "1"],
    "label": ["red", "blue", None, "blue", "red"],
    "split": ["train", "val", None, "test", "train"],
    "age": [31.5, 27.1, 44.0, 0.1, -3.25],
    "posts": [12, 3, 0, 7, 2**30 + 1],
}
EDGES = {"source": ["ann", "cat", "01", "bob"], "target": ["bob", "ann", "1", "1"]}


def of_csv(tmp_path):
    pd.DataFrame(NODES).to_csv(tmp_path / "nodes.csv", index=False)
    pd.DataFrame(EDGES).to_csv(tmp_path / "edges.csv", index=False)
    return tmp_path


def of_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    pd.DataFrame(NODES).to_parquet(tmp_path / "nodes.parquet")
    pd.DataFrame(EDGES).to_parquet(tmp_path / "edges.parquet")
    return tmp_path


def of_pandas(tmp_path):
    return pd.DataFrame(NODES), pd.DataFrame(EDGES)


def of_indexed_pandas(tmp_path):
    nodes = pd.DataFrame(NODES, index=[9, 7, 5, 3, 1]).astype({"label": "category"})
    return nodes.set_index("id"), pd.DataFrame(EDGES).astype("category")


def of_nullable_pandas(tmp_path):
    return pd.DataFrame(NODES).convert_dtypes(), pd.DataFrame(EDGES).convert_dtypes()


def of_polars(tmp_path):
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    return polars.DataFrame(NODES), polars.DataFrame(EDGES)


def of_lazy_polars(tmp_path):
    return tuple(frame.lazy() for frame in of_polars(tmp_path))


def of_arrow(tmp_path):
    pa = pytest.importorskip("pyarrow")
    nodes = pa.table(NODES)
    label = nodes["label"].dictionary_encode()
    return nodes.set_column(1, "label", label), pa.table(EDGES)


def of_bytes(tmp_path):
    pa = pytest.importorskip("pyarrow")
    encoded = {name: [text.encode() for text in EDGES[name]] for name in EDGES}
    return pa.table(NODES), pa.table(encoded)


def of_stream(tmp_path):
    pa = pytest.importorskip("pyarrow")
    return tuple(pa.RecordBatchReader.from_stream(pa.table(t)) for t in (NODES, EDGES))


def of_duckdb(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    connection = duckdb.connect()
    connection.register("people", pd.DataFrame(NODES))
    connection.register("friends", pd.DataFrame(EDGES))
    return connection.sql("select * from people"), connection.sql("select * from friends")


def of_networkx(tmp_path):
    graph = nx.Graph()
    rows = pd.DataFrame(NODES).set_index("id").to_dict("index")
    graph.add_nodes_from((name, row) for name, row in rows.items())
    graph.add_edges_from(zip(EDGES["source"], EDGES["target"], strict=True))
    return graph


KINDS = [
    of_parquet,
    of_pandas,
    of_indexed_pandas,
    of_nullable_pandas,
    of_polars,
    of_lazy_polars,
    of_arrow,
    of_bytes,
    of_stream,
    of_duckdb,
    of_networkx,
]


def assert_same(data, other):
    assert sorted(data.keys()) == sorted(other.keys())
    for name in data.keys():  # noqa: SIM118
        if isinstance(data[name], torch.Tensor):
            assert data[name].dtype == other[name].dtype, name
            assert torch.equal(data[name], other[name]), name
        else:
            assert data[name] == other[name], name


def refusal(*args, function=frames_to_data, **options):
    with pytest.raises(InvalidInputError) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def notices(*args, function=frames_to_data, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = function(*args, **options)
    assert all(issubclass(line.category, Notice) for line in caught)
    return data, [str(line.message) for line in caught]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("classes", [CLASSES, "public", 2])
def test_every_kind_of_table_gives_the_graph_that_the_csv_gives(kind, classes, tmp_path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "other").mkdir()
    expected = load(of_csv(tmp_path / "csv"), classes=classes)
    assert expected.ids == NODES["id"]
    assert expected.x[4, 1] == np.float32(2**30 + 1)
    assert_same(load(kind(tmp_path / "other"), classes=classes), expected)


@pytest.mark.parametrize("kind", [of_pandas, of_polars, of_arrow, of_duckdb])
def test_directed_tables_are_the_csvs_too(kind, tmp_path):
    expected = load(of_csv(tmp_path), classes=CLASSES, directed=True)
    assert expected.num_edges == 4
    nodes, edges = kind(tmp_path)
    assert_same(load(nodes=nodes, edges=edges, classes=CLASSES, directed=True), expected)


def test_kinds_may_be_mixed_and_what_is_given_stays_as_it_is(tmp_path):
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    nodes = pd.DataFrame(NODES).astype({"posts": "str"})  # numbers as text, which are read as such
    before = nodes.copy(deep=True)
    data = graphveil.load(nodes=nodes, edges=polars.DataFrame(EDGES), classes=CLASSES)
    pd.testing.assert_frame_equal(nodes, before)
    assert_same(data, load(of_csv(tmp_path), classes=CLASSES))


def test_whole_numbers_as_ids_and_labels_with_a_gap():
    nodes = pd.DataFrame({"id": [10, 20, 30], "label": [0.0, np.nan, 1.0], "a": [1, 2, 3]})
    data = frames_to_data(nodes, pd.DataFrame({"source": ["10"], "target": ["30"]}), classes=2)
    assert data.ids == ["10", "20", "30"]
    assert data.y.tolist() == [0, -1, 1]
    assert data.edge_index.tolist() == [[0, 2], [2, 0]]


def test_an_empty_text_is_a_missing_one():
    nodes = pd.DataFrame(NODES | {"label": ["red", "", "blue", "", "red"], "split": [""] * 5})
    data = frames_to_data(nodes, pd.DataFrame(EDGES), classes=CLASSES)
    assert data.y.tolist() == [0, -1, 1, -1, 0]
    assert not data.train_mask.any()
    nodes.loc[2, "id"] = ""
    assert "Got an empty cell in row 3" in refusal(nodes, pd.DataFrame(EDGES))


def test_ids_go_through_splits():
    data = frames_to_data(*of_pandas(None), classes=CLASSES)
    training, testing = separate(data)
    assert (training.ids, testing.ids) == (["ann", "bob", "1"], ["01"])
    assert training.columns == ["age", "posts"]  # as long as a part may be, and of all
    two = frames_to_data(
        pd.DataFrame({"id": ["p", "q"], "a": [0, 1], "b": [1, 2]}), pd.DataFrame(EDGES)[:0]
    )
    drawn = split(two, (0.5, 0, 0.5))
    training, testing = separate(drawn)
    assert drawn.ids == ["p", "q"]
    assert sorted(training.ids + testing.ids) == ["p", "q"]
    assert training.ids == [["p", "q"][int(training.node_id)]]


def test_ids_of_graphs_go_through_splits(tmp_path):
    for name, text in {
        "graphs": "id,label,split\ng1,0,train\ng2,1,test\ng3,1,train\n",
        "nodes": "graph,id,a\ng1,x,1\ng2,x,2\ng3,x,3\n",
        "edges": "graph,source,target\n",
    }.items():
        (tmp_path / f"{name}.csv").write_text(text)
    data = load(tmp_path, classes=2)
    assert data.ids == ["g1", "g2", "g3"]
    training, testing = separate(data)
    assert (training.ids, testing.ids) == (["g1", "g3"], ["g2"])


def test_ids_are_saved_and_read_with_a_graph(tmp_path):
    data = frames_to_data(*of_pandas(None), classes=CLASSES)
    torch.save(data, tmp_path / "g.pt")
    content = {name: np.asarray(data[name]) for name in data.keys()}  # noqa: SIM118
    np.savez(tmp_path / "g.npz", **content)
    assert_same(load(tmp_path / "g.pt"), data)
    assert load(tmp_path / "g.npz").ids == NODES["id"]


def test_ids_must_be_one_text_for_each_record():
    data = frames_to_data(*of_pandas(None), classes=CLASSES)
    data.ids = data.ids[:3]
    assert "'ids' parameter must be one for each node. Got 3 for 5" in refusal(data, function=split)
    data.ids = [1, 2, 3, 4, 5]
    assert "'ids' parameter must be a list of texts" in refusal(data, function=split)


ODD = pd.DataFrame(
    [("ann", "bob"), ("ann", "bob"), ("bob", "ann"), ("cat", "cat"), ("cat", "cat"), ("1", "bob")],
    columns=["source", "target"],
)


def test_loops_and_repeated_lines_are_counted_and_said_once():
    data, lines = notices(pd.DataFrame(NODES), ODD, classes=CLASSES)
    assert lines == [
        "edges: 2 line(s) from a node to itself, which no method reads; 2 line(s) that repeat "
        "another, which is read once"
    ]
    assert data.num_edges == 5  # two friendships, and one loop
    _, lines = notices(pd.DataFrame(NODES), ODD, classes=CLASSES, directed=True)
    assert lines == [
        "edges: 2 line(s) from a node to itself, which no method reads; 1 line(s) that repeat "
        "another, which is read once"
    ]


def test_a_list_that_tells_every_friendship_from_both_sides_is_nothing_odd():
    edges = pd.DataFrame(EDGES)
    both = pd.concat([edges, edges.rename(columns={"source": "target", "target": "source"})])
    data, lines = notices(pd.DataFrame(NODES), both, classes=CLASSES)
    assert lines == []
    assert_same(data, frames_to_data(pd.DataFrame(NODES), edges, classes=CLASSES))
    _, lines = notices(pd.DataFrame(NODES), both[:-1], classes=CLASSES)
    assert lines == ["edges: 3 line(s) that repeat another, which is read once"]


@pytest.mark.parametrize("name", ["dp-gnn", "late-graph", "gap", "dpar", "graph-split", "gnn"])
@pytest.mark.parametrize("directed", [False, True])
def test_no_method_reads_a_loop_and_every_method_reads_a_repeated_line_once(name, directed):
    """What the notice says is what happens: bit for bit, in the open, with the same weights."""
    rng = np.random.default_rng(0)
    ids = [f"n{k}" for k in range(40)]
    nodes = pd.DataFrame({"id": ids, "a": rng.normal(size=40), "b": rng.normal(size=40)})
    nodes["label"] = np.arange(40) % 2
    plain = pd.DataFrame({"source": ids, "target": ids[7:] + ids[:7]})
    loops = pd.DataFrame({"source": ids[:5], "target": ids[:5]})
    odd = pd.concat([plain, plain[:9], loops, loops])
    once = split(frames_to_data(nodes, plain, classes=2, directed=directed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        twice = split(frames_to_data(nodes, odd, classes=2, directed=directed))
    assert twice.num_edges > once.num_edges
    kind = graphveil.METHODS[name]
    quick = {"steps": 4, "open_steps": 4, "hidden_channels": 4}
    settings = {key: value for key, value in quick.items() if key in setting_fields(kind)}
    method = kind(**settings, **({"epsilon": 8.0} if kind.private else {}))
    method.fit(once)
    wanted = method.predict_proba(once, mode="visible")
    assert torch.equal(method.predict_proba(twice, mode="visible"), wanted)


def test_further_columns_of_edges_are_named_and_not_read(tmp_path):
    edges = pd.DataFrame(EDGES).assign(since=2020, weight=0.5)
    line = "of an edge only source and target are read; not read: since, weight"
    _, lines = notices(pd.DataFrame(NODES), edges, classes=CLASSES)
    assert lines == [f"edges: {line}"]
    folder = of_csv(tmp_path)
    edges.to_csv(folder / "edges.csv", index=False)
    _, lines = notices(folder, function=load, classes=CLASSES)
    assert lines == [f"{folder / 'edges.csv'}: {line}"]
    graph = of_networkx(None)
    graph["ann"]["bob"]["weight"] = 2.0
    _, lines = notices(graph, function=load, classes=CLASSES)
    assert lines == [f"the edges of the graph: {line.replace('since, ', '')}"]


BAD = {
    "no id": (lambda n, e: (n.drop(columns="id"), e), "nodes must have the column"),
    "no target": (lambda n, e: (n, e[["source"]]), "edges must have the column"),
    "same id": (lambda n, e: (n.assign(id="ann"), e), "nodes: column 'id' must be unlike all"),
    "unknown end": (lambda n, e: (n, e.assign(target="eve")), "'target' must be an id in nodes"),
    "text": (lambda n, e: (n.assign(sex="f"), e), "nodes: column 'sex' must be a finite number"),
    "gap": (lambda n, e: (n.assign(age=[1, 2, None, 4, 5]), e), "Got an empty cell in row 3"),
    "date": (lambda n, e: (n.assign(d=pd.Timestamp("2020")), e), "days since a public date"),
    "no features": (lambda n, e: (n[["id", "label"]], e), "nodes must have a feature column"),
    "no rows": (lambda n, e: (n[:0], e), "nodes has no rows"),
    "label": (lambda n, e: (n.assign(label="green"), e), "one of the stated classes, red, blue"),
    "split": (lambda n, e: (n.assign(split="dev"), e), "'split' must be train, val or test"),
    "twice": (lambda n, e: (pd.concat([n, n[["age"]]], axis=1), e), "'age' more than once"),
    "no table": (lambda n, e: (n, e.to_numpy()), "edges must be a table"),
    "nested": (lambda n, e: (n.assign(age=[[1]] * 5), e), "'age' must be a finite number"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_table_is_refused_in_a_line(case):
    change, message = BAD[case]
    assert message in refusal(*change(*of_pandas(None)), classes=CLASSES)


@pytest.mark.parametrize("kind", [of_polars, of_arrow, of_duckdb])
def test_arrow_without_pyarrow_is_refused_in_a_line(kind, monkeypatch, tmp_path):
    nodes, _ = kind(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = refusal(nodes, "nodes", function=as_frame)
    assert "needs pyarrow" in message
    assert "graphveil[frames]" in message


def test_load_takes_one_thing(tmp_path):
    nodes, edges = of_pandas(None)
    for wrong in ({"nodes": nodes}, {"edges": edges}, {"source": "social", "nodes": nodes}):
        assert "both 'nodes' and 'edges'" in refusal(function=load, **wrong)
    assert "Got list instead" in refusal([1, 2, 3], function=load)
    assert "'schema' parameter is for files" in refusal("social", function=load, schema=object())
    assert "'schema' parameter" in refusal(nodes, edges, schema=object())
    np.savez(tmp_path / "g.npz", x=np.ones((2, 1)), edge_index=np.zeros((2, 0), int))
    message = refusal(tmp_path / "g.npz", function=load, schema=object())
    assert "'schema' parameter is for a directory with tables" in message


def test_attributes_of_networkx_are_chosen_by_name():
    graph = nx.DiGraph()
    graph.add_node(1, age=3, party="red", note="text")
    graph.add_node((2, "b"), party="blue", age=4, note="more")
    graph.add_edge((2, "b"), 1)
    data = from_networkx(graph, features=["age"], label="party", classes=CLASSES)
    assert data.ids == ["1", "(2, 'b')"]
    assert (data.columns, data.x.tolist(), data.y.tolist()) == (["age"], [[3.0], [4.0]], [0, 1])
    assert (data.directed, data.edge_index.tolist()) == (True, [[1], [0]])
    assert "column 'note' must be a finite number" in refusal(
        graph, function=from_networkx, label="party", classes=CLASSES
    )
    assert "Got 'size'" in refusal(graph, function=from_networkx, features=["size"])
    assert "'directed' parameter must be as the graph is" in refusal(
        graph, function=load, directed=False
    )
    assert "no nodes" in refusal(nx.Graph(), function=load)
    nx.set_node_attributes(graph, 1, "id")
    assert "attribute 'id'" in refusal(graph, function=from_networkx, label="party")


def test_edges_of_a_multigraph_are_counted():
    graph = nx.MultiGraph([(0, 1), (0, 1), (1, 1)])
    nx.set_node_attributes(graph, 1.0, "one")
    data, lines = notices(graph, function=load)
    assert data.edge_index.tolist() == [[0, 1, 1], [1, 0, 1]]
    assert lines == [
        "the edges of the graph: 1 line(s) from a node to itself, which no method reads; 1 line(s) "
        "that repeat another, which is read once"
    ]


# --- by a schema ----------------------------------------------------------------------------------

SCHEMA = """\
unit = "patient"
id = "pid"
empty = ["NA"]
[columns.age]
kind = "number"
low = 0
high = 100
optional = true
[columns.ward]
kind = "category"
values = ["1", "2"]
[label]
column = "outcome"
task = "binary"
classes = ["alive", "died"]
[edges]
source = "from"
target = "to"
"""


def stated_tables():
    nodes = pd.DataFrame(
        {
            "pid": ["a", "b", "c", "d"],
            "outcome": ["died", "alive", None, "alive"],
            "age": [30, None, 50, 120],
            "ward": [1, 2, 1, 2],
            "split": ["train", "val", "test", None],
        }
    )
    nodes["age"] = nodes["age"].astype("Int64")
    edges = pd.DataFrame({"from": ["a", "b", "c"], "to": ["b", "c", "c"], "since": [1, 2, 3]})
    return nodes, edges


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "networkx"])
def test_tables_in_memory_and_in_files_are_one_graph_by_a_schema(kind, tmp_path):
    nodes, edges = stated_tables()
    (tmp_path / "schema.toml").write_text(SCHEMA)
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    with pytest.warns(Notice) as notices:
        from_files = load(tmp_path)
    lines = [str(notice.message) for notice in notices]
    assert any("only from and to are read; not read: since" in line for line in lines)
    assert any("1 line(s) from a node to itself" in line for line in lines)
    assert any("'age' 1" in line for line in lines)
    given = {"nodes": nodes, "edges": edges}
    if kind in ("arrow", "polars"):
        pa = pytest.importorskip("pyarrow")
        given = {name: pa.Table.from_pandas(frame) for name, frame in given.items()}
    if kind == "polars":
        pl = pytest.importorskip("polars")
        given = {name: pl.from_arrow(table) for name, table in given.items()}
    if kind == "networkx":
        graph = nx.Graph()
        rows = nodes.astype(object).set_index("pid").to_dict("index")
        graph.add_nodes_from(
            (name, {key: cell for key, cell in row.items() if not pd.isna(cell)})
            for name, row in rows.items()
        )
        graph.add_edges_from(edges[["from", "to"]].itertuples(index=False, name=None))
        given = {"source": graph}
    path = tmp_path / "schema.toml"
    for schema in (path, Schema.read(path), Schema.read(path).to_dict()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            data = load(**given, schema=schema)
        assert sorted(data.keys()) == sorted(from_files.keys())
        for name, value in from_files.items():
            same = torch.equal(value, data[name]) if torch.is_tensor(value) else value == data[name]
            assert same, name
    assert data.ids == ["a", "b", "c", "d"]
    assert (data.task, data.class_names, data.unit_name) == ("binary", ["alive", "died"], "patient")
    assert data.y.tolist() == [1, 0, -1, 0]


@pytest.mark.filterwarnings("ignore::graphveil.data.class_list.Notice")
def test_what_a_schema_says_and_what_is_said_beside_it_must_agree(tmp_path):
    nodes, edges = stated_tables()
    schema = {**tomllib.loads(SCHEMA), "edges": {"source": "from", "target": "to"}}
    message = refusal(nodes, edges, schema=schema, classes=["alive", "died"])
    assert "'classes' parameter must be left out" in message
    schema["edges"]["directed"] = True
    assert frames_to_data(nodes, edges, schema=schema).directed is True
    assert "as the schema says" in refusal(nodes, edges, schema=schema, directed=False)
    assert "'shoe'" in refusal(nodes.assign(shoe=1), edges, schema=schema)
    assert "must have the column 'ward'" in refusal(
        nodes.drop(columns="ward"), edges, schema=schema
    )
    message = refusal(nodes.rename(columns={"pid": "id"}), edges, schema=schema)
    assert "must have the column(s) 'pid'" in message
    graph = nx.DiGraph()
    graph.add_node("a", pid="a", age=3, ward=1)
    assert "which the schema calls the id" in refusal(graph, function=load, schema=schema)
    message = refusal(graph, function=from_networkx, schema=schema, features=["age"])
    assert "must be left out where there is a schema" in message
