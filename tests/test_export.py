"""Exported models say what the methods say, and embeddings read no further than they state."""

import copy
import json
import stat

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import prices
from graphveil import export
from graphveil._errors import GraphveilError, InvalidInputError, NotFittedError
from graphveil.graph.collate import collate
from graphveil.graph.splits import split
from graphveil.methods import METHODS, budget, class_weights, inference

CLASSES, NODES = 3, 60


@pytest.fixture(autouse=True, scope="module")
def prices_are_remembered():
    with prices.remembered(budget, inference, class_weights):
        yield


def graph(features=5, *, seed=0, layout="dense", directed=False, edges=90):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(NODES) % CLASSES
    x = torch.randn(NODES, features, generator=rng) + y.unsqueeze(1)
    if layout == "sparse":
        x = (x * (torch.rand(x.shape, generator=rng) < 0.1)).to_sparse_csr()
    source = torch.randint(NODES, (edges,), generator=rng)
    shift = torch.randint(1, NODES, (edges,), generator=rng)
    edge_index = torch.stack([source, (source + shift) % NODES])
    if not directed:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    data = Data(x=x, edge_index=edge_index.unique(dim=1), y=y)
    data.num_classes, data.directed = CLASSES, directed
    return split(data, seed=seed)


def graphs():
    rng = torch.Generator().manual_seed(0)
    listed = []
    for number in range(NODES):
        size = 2 + number % 5
        x = torch.randn(size, 4, generator=rng) + number % 2
        chain = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        edges = torch.cat([chain, chain.flip(0)], 1)
        listed.append(Data(x=x, edge_index=edges, y=torch.tensor([number % 2])))
    data = collate(listed, num_classes=2)
    data.directed = False
    return split(data, seed=0)


def fit(name, data, **settings):
    kind = METHODS[name]
    fields = kind.__dataclass_fields__
    quick = {"steps": 6, "hidden_channels": 4, "open_steps": 6, "head_steps": 6}
    quick = {key: value for key, value in quick.items() if key in fields}
    quick |= {"epsilon": 20.0, "delta": 1e-4} if kind.private else {}
    return kind(**(quick | settings)).fit(data)


# --- ONNX -----------------------------------------------------------------------------------------


def ask(path, x, sums=None):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {"x": (x.to_dense() if x.layout != torch.strided else x).float().numpy()}
    if sums is not None:
        given["sums"] = sums.float().numpy()
    (answers,) = session.run(None, given)
    return torch.from_numpy(answers)


def difference(method, data, tmp_path, **alone):
    """The largest difference between a file's probabilities and the method's own.

    ``alone`` are the settings with which the method itself reads no neighbour.
    """
    pytest.importorskip("onnx", reason="onnx is not installed")
    export.to_onnx(method, tmp_path / "model.onnx")
    answers = ask(tmp_path / "model.onnx", data.x, getattr(method, "cache_", None))
    expected = method.set_params(**alone).predict_proba(data)
    assert answers.shape == expected.shape
    assert float((expected[0] - expected[1]).abs().max()) > 1e-3  # it says something of rows
    return float((answers - expected).abs().max())


ALONE = {
    "dp-mlp": {},
    "mlp": {},
    "late-graph": {"rounds": 0},
    "dpar": {"smoothing_steps": 0},
    "open-dpar": {"smoothing_steps": 0},
}
KINDS = {
    "dense": ((5, "dense"), {}),
    "wide": ((1500, "dense"), {}),
    "sparse": ((1500, "sparse"), {}),
    "projected": ((40, "dense"), {"project_above": 20, "projection": 8}),
    "sparse, projected": ((1500, "sparse"), {"project_above": 20, "projection": 8}),
    "raw": ((5, "dense"), {"features": "raw"}),
    "raw, projected": ((40, "dense"), {"features": "raw", "project_above": 20, "projection": 8}),
    "row": ((5, "dense"), {"features": "row", "feature_scale": 2.0}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALONE)
def test_own_rows_give_the_same_probabilities(name, kind, tmp_path):
    (columns, layout), settings = KINDS[kind]
    data = graph(columns, layout=layout)
    method = fit(name, data, **settings)
    assert difference(method, data, tmp_path, **ALONE[name]) < 1e-5


def about(data, task):
    """The same graph with another target."""
    data = copy.copy(data)
    data.task = task
    if task == "multilabel":
        data.y = torch.stack([data.y == 0, data.y > 0, data.y < 0], 1).long()
    elif task == "regression":
        data.y, data.value_range = 4.0 * data.y + 1, (-3.0, 30.0)
        del data.num_classes
    elif task == "binary":
        data.y, data.num_classes = (data.y > 0).long(), 2
    return data


@pytest.mark.parametrize("task", ["binary", "ordinal", "multilabel", "regression"])
@pytest.mark.parametrize("name", [*ALONE, "gap"])
def test_every_task_gives_the_same_answers(name, task, tmp_path):
    data = about(graph(), task)
    method = fit(name, data)
    width = 33.0 if task == "regression" else 1.0
    assert difference(method, data, tmp_path, **ALONE.get(name, {})) < 1e-5 * width
    told = export.to_onnx(method, tmp_path / "again.onnx")
    assert told["task"] == task
    assert told["output"] == ("value" if task == "regression" else "probabilities")


ACTIVATIONS = ["tanh", "relu", "elu", "selu", "gelu", "leaky_relu", "softplus"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_hidden_layers_give_the_same_probabilities(activation, tmp_path):
    data = graph()
    for name, layers in (("mlp", 3), ("dpar", 2), ("late-graph", 2)):
        method = fit(name, data, num_layers=layers, activation=activation, hidden_channels=16)
        assert difference(method, data, tmp_path, **ALONE[name]) < 1e-5


@pytest.mark.parametrize("reading", ["beliefs", "smoothing", "inside"])
def test_the_head_of_late_graph_is_what_it_says_without_neighbours(reading, tmp_path):
    data = graph()
    method = fit("late-graph", data, reading=reading)
    with_neighbours = method.predict_proba(data)
    assert difference(method, data, tmp_path, rounds=0) < 1e-5
    answers = ask(tmp_path / "model.onnx", data.x)
    assert float((answers - with_neighbours).abs().max()) > 1e-3


GAPS = {
    "belief": {},
    "belief, two hops": {"hops": 2},
    "belief, loud": {"epsilon": 1.0},
    "label": {"messages": "label"},
    "encoding": {"messages": "encoding"},
    "encoding, attention": {"messages": "encoding", "combine": "attention", "hops": 2},
    "evidence of edges": {"unit": "edge"},
    "label of edges": {"unit": "edge", "messages": "label", "hops": 2},
    "encoding of edges": {"unit": "edge", "messages": "encoding", "hidden_channels": 16},
    "as published": {"unit": "edge", "paper": True},
}


@pytest.mark.parametrize("columns, layout", [(5, "dense"), (1100, "dense"), (1100, "sparse")])
@pytest.mark.parametrize("kind", GAPS)
def test_gap_reads_a_row_and_its_cached_sums(kind, columns, layout, tmp_path):
    data = graph(columns, layout=layout)
    method = fit("gap", data, **GAPS[kind])
    assert difference(method, data, tmp_path) < 1e-5
    other = ask(tmp_path / "model.onnx", data.x, method.cache_.flip(0))
    assert (
        float((other - method.predict_proba(data)).abs().max()) > 1e-4
    )  # others' sums say otherwise


def test_both_heads_of_edges_are_exported(tmp_path):
    data = graph()
    method = fit("gap", data, unit="edge", hops=2)
    answers = []
    for chosen in range(2):
        method.network_.chosen.fill_(chosen)
        assert difference(method, data, tmp_path) < 1e-5
        answers.append(ask(tmp_path / "model.onnx", data.x, method.cache_))
    assert not torch.allclose(*answers, atol=1e-4)


def test_rows_of_zeros_and_rows_alone_are_answered(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed")
    data = graph()
    method = fit("dp-mlp", data)
    export.to_onnx(method, tmp_path / "model.onnx")
    data.x[0] = 0.0
    expected = method.predict_proba(data)
    for rows in (slice(0, 1), slice(7, 8), slice(0, 0)):
        answers = ask(tmp_path / "model.onnx", data.x[rows])
        assert torch.allclose(answers, expected[rows], atol=1e-5)


def read_metadata(path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    model = onnx.load(path)
    return model, {entry.key: entry.value for entry in model.metadata_props}


def test_the_file_says_what_it_is_and_what_is_promised(tmp_path):
    method = fit("late-graph", graph())
    names, columns = ["a", "b", "c"], ["v", "w", "x", "y", "z"]
    path = tmp_path / "model.onnx"
    pytest.importorskip("onnx", reason="onnx is not installed")
    about = export.to_onnx(method, path, class_names=names, columns=columns)
    model, metadata = read_metadata(path)
    assert (model.opset_import[0].version, model.ir_version) == (17, 8)
    assert model.producer_name == "graphveil"
    guarantee = method.certificate_.guarantee
    assert float(metadata["epsilon"]) == guarantee.epsilon <= 20
    assert (float(metadata["delta"]), metadata["unit"]) == (guarantee.delta, "node")
    assert (metadata["method"], metadata["task"]) == ("late-graph", "multiclass")
    assert json.loads(metadata["class_names"]) == names
    assert json.loads(metadata["columns"]) == columns
    assert "graph is not read" in metadata["reads"]
    assert "rounds=0" in metadata["reads"]
    assert "whoever may see that node's row" in metadata["answers_seen_by"]
    assert metadata["weights_seen_by"] == "anybody"
    assert {key: about[key] for key in metadata} == metadata
    assert about["inputs"] == ["x: float32 (n, 5)"]
    export.to_onnx(method, path)
    assert not {"class_names", "columns"} & read_metadata(path)[1].keys()


def test_without_a_proof_the_file_is_its_owners(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed")
    data = graph()
    about = export.to_onnx(fit("mlp", data), tmp_path / "open.onnx")
    assert about["epsilon"] == "inf"
    assert "no epsilon is proven" in about["weights_seen_by"]
    export.to_onnx(fit("dp-mlp", data), tmp_path / "private.onnx")
    modes = [
        stat.S_IMODE((tmp_path / f"{name}.onnx").stat().st_mode) for name in ("open", "private")
    ]
    assert modes[0] == 0o600
    assert modes[1] & 0o044


def test_gaps_answers_are_for_whom_its_predictions_are(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed")
    data = graph()
    seen = {
        unit: export.to_onnx(fit("gap", data, unit=unit), tmp_path / "m.onnx")["answers_seen_by"]
        for unit in ("node", "edge")
    }
    assert seen["node"].startswith("its own node only")
    assert seen["edge"].startswith("anybody")


def test_the_cache_is_not_in_the_file(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed")
    method = fit("gap", graph())
    export.to_onnx(method, tmp_path / "model.onnx")
    before = (tmp_path / "model.onnx").read_bytes()
    method.cache_ = method.cache_ + 1
    export.to_onnx(method, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == before


@pytest.mark.parametrize(
    "name, reason",
    [
        ("dp-gnn", "reads neighbours inside"),
        ("graph-split", "reads neighbours inside"),
        ("gnn", "reads neighbours inside"),
        ("open-gap", "reads neighbours inside"),
        ("graph-dpsgd", "reads whole graphs"),
        ("graph-gnn", "reads whole graphs"),
    ],
)
def test_what_is_not_row_wise_is_refused_with_the_way_out(name, reason, tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed")
    method = METHODS[name](**({"epsilon": 8.0} if METHODS[name].private else {}))
    with pytest.raises(InvalidInputError, match=reason) as refusal:
        export.to_onnx(method, tmp_path / "model.onnx")
    assert "graphveil predict" in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_bad_requests_are_refused(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed")
    path = tmp_path / "model.onnx"
    with pytest.raises(NotFittedError):
        export.to_onnx(METHODS["dp-mlp"](epsilon=8.0), path)
    method = fit("dp-mlp", graph())
    for wrong, match in (
        ({"class_names": ["a"]}, "class_names"),
        ({"columns": ["a"]}, "columns"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            export.to_onnx(method, path, **wrong)
    with pytest.raises(InvalidInputError, match=r"\.onnx"):
        export.to_onnx(method, tmp_path / "model.pt")
    with pytest.raises(InvalidInputError, match="cannot be written"):
        export.to_onnx(method, tmp_path / "nowhere" / "model.onnx")
    method.set_params(features="raw")
    with pytest.raises(InvalidInputError, match="another features"):
        export.to_onnx(method, path)
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("graphveil.export.models.find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match=r"graphveil\[onnx\]"):
        export.to_onnx(METHODS["dp-mlp"](epsilon=8.0), tmp_path / "model.onnx")


# --- embeddings -----------------------------------------------------------------------------------

# Method, settings, mode, what is embedded; how far it reads (None: every row) and who may see it.
EMBEDDINGS = [
    ("dp-mlp", {}, "visible", None, "output", 0, "its own node, and whoever may see"),
    ("dp-mlp", {"num_layers": 2}, "visible", None, "hidden", 0, "its own node, and whoever"),
    ("dp-mlp", {}, "disjoint", None, "output", 0, "its own node of that other graph"),
    ("late-graph", {}, "visible", None, "output", 3, "up to 3 steps away"),
    ("late-graph", {"rounds": 1}, "visible", None, "output", 1, "up to 1 step away"),
    ("late-graph", {"rounds": 0}, "visible", None, "output", 0, "its own node, and whoever"),
    ("late-graph", {"num_layers": 2}, "visible", None, "hidden", 0, "its own node, and whoever"),
    (
        "late-graph", {"num_layers": 2, "reading": "inside", "rounds": 2}, "visible", None,
        "hidden", 2, "up to 2 steps away",
    ),
    ("late-graph", {"num_layers": 2}, "visible", "output", "output", 3, "up to 3 steps away"),
    ("late-graph", {}, "disjoint", None, "output", None, "a student read every one"),
    (
        "late-graph", {"student": False}, "disjoint", None, "output", 3,
        "of that other graph up to 3 steps away",
    ),
    ("late-graph", {"num_layers": 2}, "disjoint", None, "hidden", 0, "its own node of that other"),
    ("dpar", {}, "visible", None, "output", 2, "up to 2 steps away"),
    ("dpar", {"num_layers": 2}, "visible", None, "hidden", 0, "its own node, and whoever"),
    ("dp-gnn", {}, "visible", None, "hidden", 1, "up to 1 step away"),
    ("dp-gnn", {"num_layers": 2}, "visible", None, "hidden", 2, "up to 2 steps away"),
    ("dp-gnn", {"unit": "edge"}, "visible", None, "hidden", 1, "whoever may see the edges up to 1"),
    (
        "dp-gnn", {"unit": "edge", "encoder_layers": 1, "decoder_layers": 0}, "visible", None,
        "hidden", 0, "anybody: it reads its own row, which is public",
    ),
    ("graph-split", {}, "visible", None, "hidden", 1, "up to 1 step away"),
    ("graph-split", {}, "visible", "output", "output", 2, "up to 2 steps away"),
    ("gap", {}, "cached", None, "hidden", 0, "its own node only"),
    ("gap", {}, "cached", "output", "output", 0, "its own node only"),
    ("gap", {}, "visible", None, "hidden", 2, "rows and edges up to 2 steps away"),
    ("gap", {"unit": "edge"}, "cached", None, "hidden", 0, "anybody"),
    ("gap", {"unit": "edge"}, "visible", None, "hidden", 1, "whoever may see the edges up to 1"),
    ("mlp", {}, "visible", None, "hidden", 0, "nothing is promised to anybody"),
    ("gnn", {}, "visible", None, "hidden", 1, "nothing is promised to anybody"),
    ("open-gap", {}, "visible", None, "hidden", 2, "nothing is promised to anybody"),
    ("open-dpar", {}, "visible", None, "hidden", 0, "nothing is promised to anybody"),
]  # fmt: skip


def distances(data, node):
    """How many steps a node's data must go to reach every other; large where it does not."""
    steps = torch.full((NODES,), NODES)
    steps[node] = 0
    for done in range(NODES):
        source, target = data.edge_index
        reached = target[steps[source] == done]
        steps[reached] = steps[reached].clamp_max(done + 1)
    return steps


@pytest.mark.parametrize("name, settings, mode, of, is_of, steps, who", EMBEDDINGS)
def test_an_embedding_reads_as_far_as_it_says(name, settings, mode, of, is_of, steps, who):
    data = graph(edges=30)
    method = fit(name, data, **({"hidden_channels": 16} | settings))
    embedding = method.embed(data, mode, of=of)
    assert (embedding.of, embedding.mode) == (is_of, mode)
    assert embedding.rows.dtype == torch.float32
    assert who in embedding.seen_by
    assert embedding.private != embedding.seen_by.startswith("anybody")
    assert embedding.costs.startswith("nothing")
    farthest = 0
    for node in range(0, NODES, 7):
        other = copy.copy(data)
        other.x = data.x.clone()
        other.x[node] = torch.tensor([5.0, -3.0, 2.0, -7.0, 1.0])
        away = distances(data, node)
        changes = (method.embed(other, mode, of=of).rows - embedding.rows).abs().amax(1) > 1e-5
        assert changes[node]  # who sees it sees the row
        if steps is not None:
            assert not changes[away > steps].any()
        farthest = max(farthest, int(away[changes].max()))
    assert farthest == steps or steps is None  # and it does read so far
    without = copy.copy(data)
    without.edge_index = data.edge_index[:, :0]
    same = torch.allclose(method.embed(without, mode, of=of).rows, embedding.rows, atol=1e-6)
    assert same == (steps == 0)


def test_hidden_states_lead_to_the_prediction():
    data = graph()
    for name in ("mlp", "dp-mlp"):
        method = fit(name, data, num_layers=2)
        rows = method.embed(data).rows
        logits = method.network_.decoder(rows)
        assert torch.allclose(logits.softmax(1), method.predict_proba(data), atol=1e-6)
    method = fit("gap", data)
    outputs = method.network_.head(method.embed(data).rows)
    assert torch.allclose(outputs.softmax(1), method.predict_proba(data), atol=1e-6)
    for name in ("late-graph", "dpar", "dp-gnn"):
        method = fit(name, data)
        outputs = method.embed(data, of="output").rows
        assert torch.allclose(outputs.softmax(1), method.predict_proba(data), atol=1e-6)


def test_an_embedding_charges_nothing_and_a_new_mode_goes_on_the_certificate():
    data = graph()
    method = fit("gap", data)
    before = method.certificate_
    method.embed(data)
    assert method.certificate_ == before
    method.embed(data, "visible")
    assert method.certificate_.guarantee == before.guarantee
    assert len(method.charges_) == len(before.charges)
    (new,) = set(method.certificate_.inference) - set(before.inference)
    assert new.startswith("visible: ")


def test_whole_graphs_have_a_row_each():
    data = graphs()
    method = fit("graph-dpsgd", data, conv="sum")
    embedding = method.embed(data)
    assert (embedding.of, tuple(embedding.rows.shape)) == ("hidden", (NODES, 4))
    logits = method.network_.head(embedding.rows)
    assert torch.allclose(logits.softmax(1), method.predict_proba(data), atol=1e-6)
    assert "whoever may see the graph itself" in embedding.seen_by
    kind = METHODS["graph-dpsgd"](epsilon=20.0, delta=1e-4, steps=3).fit(data)  # of counts
    counted = kind.embed(data)
    assert (counted.of, tuple(counted.rows.shape)) == ("output", (NODES, 2))
    assert torch.allclose(counted.rows.softmax(1), kind.predict_proba(data), atol=1e-6)


def test_embeddings_that_cannot_be_are_refused():
    data = graph()
    method = fit("late-graph", data)
    before = method.certificate_
    with pytest.raises(InvalidInputError, match="predict in it"):
        method.embed(data, "noisy")
    with pytest.raises(InvalidInputError, match="cached"):
        method.embed(data, "cached")
    with pytest.raises(InvalidInputError, match="--of output"):
        method.embed(data, of="hidden")
    with pytest.raises(InvalidInputError, match="of"):
        method.embed(data, of="nothing")
    with pytest.raises(GraphveilError, match="columns"):
        method.embed(graph(7))
    with pytest.raises(NotFittedError):
        METHODS["dp-mlp"](epsilon=8.0).embed(data)
    assert method.certificate_ == before
    cached = fit("gap", data)
    fewer = split(data.subgraph(torch.arange(NODES - 1)), seed=0)
    with pytest.raises(InvalidInputError, match="60 nodes in the same order"):
        cached.embed(fewer)


# --- tables ---------------------------------------------------------------------------------------


def test_a_parquet_file_says_who_may_see_it(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    embedding = fit("dp-mlp", graph()).embed(graph())
    path, ids = tmp_path / "rows.parquet", [f"p{number}" for number in range(NODES)]
    columns = export.write_embedding(embedding, path, ids=ids, about={"method": "dp-mlp"})
    table = parquet.read_table(path)
    assert table.column_names == columns == ["id", "e0", "e1", "e2"]
    assert table.column("id").to_pylist() == ids
    values = np.stack([table.column(name).to_numpy() for name in columns[1:]], 1)
    assert np.array_equal(values, embedding.rows.numpy())
    statement = json.loads(table.schema.metadata[b"graphveil"])
    assert statement == {
        "method": "dp-mlp",
        "of": "output",
        "mode": "visible",
        "seen_by": embedding.seen_by,
        "costs": embedding.costs,
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_csv_needs_no_pyarrow_and_parquet_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("graphveil.export.tables.find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    embedding = fit("gap", graph(), unit="edge").embed(graph())
    export.write_embedding(embedding, tmp_path / "rows.csv")
    first, *lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert first.split(",")[:2] == ["id", "e0"]
    assert [line.split(",")[0] for line in lines] == [str(number) for number in range(NODES)]
    values = np.array([line.split(",")[1:] for line in lines], dtype=np.float32)
    assert np.array_equal(values, embedding.rows.numpy())
    assert stat.S_IMODE((tmp_path / "rows.csv").stat().st_mode) & 0o044  # anybody may see it
    with pytest.raises(InvalidInputError, match=r"graphveil\[data\]"):
        export.write_embedding(embedding, tmp_path / "rows.parquet")


def test_bad_tables_are_refused(tmp_path):
    embedding = fit("dp-mlp", graph()).embed(graph())
    with pytest.raises(InvalidInputError, match=r"\.parquet or \.csv"):
        export.write_embedding(embedding, tmp_path / "rows.txt")
    with pytest.raises(InvalidInputError, match="one id for each of 60"):
        export.write_embedding(embedding, tmp_path / "rows.csv", ids=["a"])
    assert not list(tmp_path.iterdir())
