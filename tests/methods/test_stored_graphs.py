"""What is trained and predicted on a store is what it would be in memory, to the last bit."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graphveil
from graphveil import InvalidInputError, methods
from graphveil.data.store import write_store
from graphveil.graph import lazy_rows, lists
from graphveil.graph.scratch import scratch_tensor
from graphveil.graph.splits import split
from graphveil.graph.stored import edges_among, without_edges
from graphveil.methods import (
    DPAR,
    DPGNN,
    DPMLP,
    GAP,
    GNNBaseline,
    GraphSplit,
    LateGraph,
    MLPBaseline,
    OpenDPAR,
    OpenGAP,
    baselines,
    hop_training,
    terms,
)
from graphveil.methods.plan import Facts
from graphveil.nn import node_classifier
from graphveil.rng import secret
from graphveil.tuning import scores


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks, also of a small graph."""
    monkeypatch.setattr(lists, "MESSAGES_AT_ONCE", 1000)
    for function in (lazy_rows.map_rows, lazy_rows.slices):
        monkeypatch.setattr(function, "__defaults__", (160, *function.__defaults__[1:]))
    monkeypatch.setattr(lists, "_SORTED", 1000)
    monkeypatch.setattr(node_classifier, "BLOCK", 199)  # which leaves 3 of 600 nodes at the end
    monkeypatch.setattr(node_classifier, "_AT_ONCE", 4000)
    monkeypatch.setattr(node_classifier, "_FEWEST", 100)


def a_graph(*, directed=False, sparse=False, task="multiclass"):
    generator = torch.Generator().manual_seed(3)
    nodes, edges = 600, 3000
    y = torch.randint(3, (nodes,), generator=generator)
    x = torch.randn(nodes, 8, generator=generator) + torch.nn.functional.one_hot(y, 8)
    x = (x * (x > 1)).to_sparse_csr() if sparse else x
    index = torch.randint(nodes, (2, edges), generator=generator)
    index = index[:, index[0] != index[1]]
    index = index if directed else torch.cat([index, index.flip(0)], 1)
    data = Data(x=x, edge_index=index.unique(dim=1), y=y, num_classes=3, directed=directed)
    if task == "regression":
        data.y, data.task, data.value_range = x.sum(1) + y, task, [-5.0, 8.0]
        del data.num_classes
    if task == "multilabel":
        data.y, data.task = torch.stack([y > 0, y > 1], 1).long(), task
        data.num_classes = 2
    return split(data, seed=2)


METHODS = {
    "dp-mlp": lambda: DPMLP(epsilon=8.0, steps=5),
    "dp-mlp, two layers": lambda: DPMLP(epsilon=8.0, steps=5, num_layers=2, sample_rate=0.3),
    "late-graph": lambda: LateGraph(epsilon=8.0, steps=5),
    "late-graph, smoothing": lambda: LateGraph(epsilon=8.0, steps=5, reading="smoothing"),
    "late-graph, inside": lambda: LateGraph(
        epsilon=8.0, steps=5, reading="inside", num_layers=2, centred=False
    ),
    "gap": lambda: GAP(epsilon=8.0, hops=2),
    "gap, edges": lambda: GAP(
        epsilon=8.0, hops=2, unit="edge", open_steps=10, head_steps=10, folds=2, public_edges=9000
    ),
    "gap, encodings": lambda: GAP(epsilon=8.0, hops=2, messages="encoding", steps=5),
    "gap, labels": lambda: GAP(epsilon=8.0, messages="label", steps=5),
    "gap, attention": lambda: GAP(
        epsilon=8.0, unit="edge", weighting="attention", steps=5, open_steps=10, head_steps=10
    ),
    "dp-gnn": lambda: DPGNN(epsilon=8.0, steps=5, sender_cap=3),
    "dp-gnn, whole messages": lambda: DPGNN(epsilon=8.0, steps=5, sender_cap=3, delivery=1.0),
    "dp-gnn, two layers": lambda: DPGNN(epsilon=8.0, steps=5, num_layers=2),
    "dp-gnn, gin": lambda: DPGNN(epsilon=8.0, steps=5, conv="gin"),
    "dpar": lambda: DPAR(epsilon=8.0, steps=5),
    "dpar, rows": lambda: DPAR(
        epsilon=8.0, steps=5, variant="gm", rows=40, neighbours=3, max_grad_norm=1.0
    ),
    "dpar, push": lambda: DPAR(
        epsilon=8.0, steps=5, variant="em0", rows=40, ranking="push", train_on="nodes"
    ),
    "dpar, two layers": lambda: DPAR(
        epsilon=8.0, steps=5, variant="em1", rows=40, num_layers=2, rho=1e-3
    ),
    "dpar, secret sample": lambda: DPAR(epsilon=8.0, steps=5, variant="gm", graph_rate=0.6),
    "dpar, secret rows": lambda: DPAR(
        epsilon=8.0, steps=5, variant="em0", graph_rate=0.6, rows=40, num_layers=2
    ),
    "graph-split": lambda: GraphSplit(epsilon=8.0, steps=5),
    "graph-split, members": lambda: GraphSplit(epsilon=8.0, steps=5, members=8, conv="gat"),
    "graph-split, groups": lambda: GraphSplit(
        epsilon=8.0, steps=5, clip_by="group", splits=7, sample_rate=0.5
    ),
    "graph-split, fresh groups": lambda: GraphSplit(
        epsilon=8.0, steps=5, fresh_groups=2, splits=3, normalisation="inverse-degree"
    ),
    "graph-split, edges": lambda: GraphSplit(epsilon=8.0, steps=5, unit="edge"),
    "mlp": lambda: MLPBaseline(steps=12),
    "mlp, batches": lambda: MLPBaseline(steps=12, batch_size=64, num_layers=3),
    "gnn, batches": lambda: GNNBaseline(steps=12, batch_size=64),
    "gnn, no encoder": lambda: GNNBaseline(
        steps=12, batch_size=64, encoder_layers=0, conv="sage", normalisation="none"
    ),
    "gnn, sender cap": lambda: GNNBaseline(steps=12, batch_size=64, num_layers=1, sender_cap=2),
    "gnn, caps": lambda: GNNBaseline(
        steps=12, batch_size=64, sender_cap=4, receiver_cap=3, conv="gat", decoder_layers=1
    ),
    "gnn, receiver cap": lambda: GNNBaseline(steps=12, batch_size=64, receiver_cap=3),
    "gnn, groups": lambda: GNNBaseline(steps=12, batch_size=64, splits=3, conv="gin"),
    "open-gap": lambda: OpenGAP(open_steps=10, head_steps=10),
    "open-gap, similarity": lambda: OpenGAP(
        open_steps=10, head_steps=10, weighting="similarity", combine="attention"
    ),
    "open-dpar": lambda: OpenDPAR(steps=12, batch_size=32),
    "open-dpar, rows": lambda: OpenDPAR(
        epochs=2, batch_size=32, rows=50, graph_rate=0.7, train_on="nodes", ranking="push"
    ),
    "dp-gnn, gat": lambda: DPGNN(epsilon=8.0, steps=5, conv="gat", heads=2),
    "dp-gnn, sage": lambda: DPGNN(epsilon=8.0, steps=5, conv="sage"),
    "dp-gnn, encoder": lambda: DPGNN(epsilon=8.0, steps=5, conv="sage", encoder_layers=1),
}


def check_same(make, data, stored, **how):
    one, other, facts = make(), make(), Facts.of(data)
    assert Facts.of(stored) == facts
    plan = one.plan(facts)  # once: it takes longer than training
    one.run(plan.on(data), data, rng=secret(fixed_seed=4))
    other.run(plan.on(stored), stored, rng=secret(fixed_seed=4))
    states = [method.network_.state_dict() for method in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert one.certificate_.guarantee == other.certificate_.guarantee
    for mode in one.modes:
        if mode != "noisy":
            answers = one.predict_proba(data, mode=mode)
            assert torch.equal(answers, other.predict_proba(stored, mode=mode)), mode


@pytest.mark.parametrize("name", METHODS)
def test_weights_and_predictions_are_those_in_memory(name, tmp_path):
    data = a_graph()
    check_same(METHODS[name], data, graphveil.load(write_store(data, tmp_path / "store")))


@pytest.mark.parametrize(
    "name",
    [
        *("late-graph", pytest.param("gap", marks=pytest.mark.slow), "gap, edges", "dp-gnn"),
        *("dpar, rows", "dpar, secret sample", "graph-split, groups", "mlp, batches"),
        *("gnn, batches", "gnn, receiver cap", "open-gap", "open-dpar"),
    ],
)
@pytest.mark.parametrize("kind", ["directed", "sparse"])
def test_also_of_directed_graphs_and_sparse_rows(name, kind, tmp_path):
    data = a_graph(**{kind: True})
    check_same(METHODS[name], data, graphveil.load(write_store(data, tmp_path / "store")))


def test_gap_keeps_its_sums_in_a_file(tmp_path, monkeypatch):
    """What it caches of a store takes no memory, and is what it caches of a graph in memory."""
    made = []
    monkeypatch.setattr(
        hop_training, "scratch_tensor", lambda *of: made.append(scratch_tensor(*of)) or made[-1]
    )
    data = a_graph()
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    one, other = (METHODS["gap"]().fit(of, rng=secret(fixed_seed=4)) for of in (data, stored))
    assert [other.cache_ is cache for cache in made] == [True]
    assert torch.equal(one.cache_, other.cache_)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
@pytest.mark.parametrize(
    "name",
    [
        "late-graph",
        "dp-gnn",
        "dp-gnn, gat",
        "dp-gnn, encoder",
        "dpar",
        "graph-split, groups",
        "mlp",
    ],
)
def test_also_of_other_tasks(name, task, tmp_path):
    data = a_graph(task=task)
    check_same(METHODS[name], data, graphveil.load(write_store(data, tmp_path / "store")))


def test_more_training_rows_than_are_held(tmp_path, monkeypatch):
    """Rows are read from the store at every step, and train to the same weights."""
    from graphveil.grads import own_rows

    data = a_graph()
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    monkeypatch.setattr(own_rows, "_FEW", 0)
    monkeypatch.setattr(own_rows, "_ROWS_AT_ONCE", 64)
    for rate in (1.0, 0.4):
        check_same(lambda rate=rate: DPMLP(epsilon=8.0, steps=5, sample_rate=rate), data, stored)


@pytest.mark.parametrize("name", ["late-graph", "gap, edges", "dp-gnn", "dpar", "graph-split"])
def test_a_noisy_prediction_reads_a_store(name, tmp_path, monkeypatch):
    data = a_graph()
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    monkeypatch.setattr("graphveil.rng.secret", lambda: secret(fixed_seed=8))
    method = METHODS[name]().fit(data)
    one, other = (method.predict_proba(of, mode="noisy", epsilon=1.0) for of in (data, stored))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["late-graph, inside", "gap", "dp-gnn"])
def test_embeddings_are_those_in_memory(name, tmp_path, monkeypatch):
    data = a_graph()
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    method = METHODS[name]().fit(data)
    assert torch.equal(method.embed(data).rows, method.embed(stored).rows)
    outputs = method.embed(stored, of="output").rows
    torch.testing.assert_close(outputs, method.embed(data, of="output").rows)


def test_half_precision_is_read_as_it_is(tmp_path):
    data = a_graph()
    data.x = data.x.half()
    check_same(METHODS["late-graph"], data, graphveil.load(write_store(data, tmp_path / "store")))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GNNBaseline(epochs=2, encoder_layers=0), "'epochs' of gnn"),
        (lambda: GraphSplit(epsilon=8.0, paper=True, epochs=1), "'paper', or"),
        (
            lambda: GAP(epsilon=8.0, messages="label", weighting="similarity"),
            "messages='label'",
        ),
        (
            lambda: GAP(epsilon=500.0, unit="edge", weighting="attention", paper=True, steps=5),
            "reads all of its node's",
        ),
    ],
)
def test_what_reads_a_graph_whole_is_refused(make, words, tmp_path):
    stored = graphveil.load(write_store(a_graph(), tmp_path / "store"))
    with pytest.raises(InvalidInputError, match=words) as refused:
        make().fit(stored)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("name", ["late-graph", "dp-gnn", "dp-gnn, two layers", "gap, edges"])
def test_scores_of_trials_are_those_in_memory(name, kind, tmp_path):
    data = a_graph(sparse=kind == "sparse", directed=True)
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    method = METHODS[name]().fit(data)
    assert torch.equal(*(scores.private_answers(method, graph) for graph in (data, stored)))
    assert scores.public_count(method, data) == scores.public_count(method, stored)


def test_edges_among_some_nodes_are_those_in_memory(tmp_path):
    data = a_graph(directed=True)
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    among = edges_among(data, data.val_mask)
    assert among.shape[1] > 10
    assert torch.equal(edges_among(stored, data.val_mask), among)
    assert not without_edges(data).edge_index.numel()
    assert not without_edges(stored).stored.lists.num_messages
    assert stored.stored.lists.num_messages == data.edge_index.shape[1]


@pytest.mark.parametrize("name", ["gap, labels", "gap", "graph-split", "gnn, batches"])
def test_a_graph_without_labels_is_predicted_as_in_memory(name, tmp_path):
    data = a_graph()
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    method = METHODS[name]().fit(data)
    for graph in (data, stored):
        del graph.y, graph.train_mask
    one, other = (method.predict_proba(graph, mode="disjoint") for graph in (data, stored))
    assert torch.equal(one, other)


def test_a_gnn_reads_batches_of_a_store_unless_told_otherwise(tmp_path, monkeypatch):
    data = a_graph()
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    monkeypatch.setattr(baselines, "_BATCH_OF_STORE", 50)
    one, other = GNNBaseline(steps=12, batch_size=50).fit(data), GNNBaseline(steps=12).fit(stored)
    assert torch.equal(one.predict_proba(data), other.predict_proba(stored))


def test_many_validation_nodes_are_predicted_with_all_others(tmp_path, monkeypatch):
    data = a_graph()
    stored = graphveil.load(write_store(data, tmp_path / "store"))

    def make():
        return GNNBaseline(steps=12, batch_size=32)

    few = make().fit(data)
    predicted, predict = [], terms.on_messages
    monkeypatch.setattr(terms, "on_messages", lambda *of: predicted.append(of) or predict(*of))
    monkeypatch.setitem(baselines._AT_ONCE, "gnn", 32)
    check_same(make, data, stored)
    assert len(predicted) > 4  # more often than is asked for in the end
    many = make().fit(stored)
    torch.testing.assert_close(many.predict_proba(stored), few.predict_proba(data))


def test_steps_in_the_open_add_up_what_parts_of_them_give(tmp_path, monkeypatch):
    """More training nodes than go through a network together, in memory and of a store."""
    data = a_graph()
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    whole = MLPBaseline(steps=12, dropout=0.0).fit(data)
    monkeypatch.setattr(baselines, "_AT_ONCE", {"mlp": 100})
    check_same(lambda: MLPBaseline(steps=12), data, stored)
    parts = MLPBaseline(steps=12, dropout=0.0).fit(stored)
    torch.testing.assert_close(parts.predict_proba(stored), whole.predict_proba(data))


# --- memory ---------------------------------------------------------------------------------------

LIMITED = """
    import resource, sys
    import numpy as np, torch
    torch.set_num_threads(1)
    import graphveil
    from graphveil.methods import METHODS, LateGraph
    from graphveil.rng import secret

    path, name, out = sys.argv[1:]
    data = graphveil.load(path)
    method = METHODS[name](steps=4, **({"epsilon": 8.0} if METHODS[name].private else {}))
    LateGraph(epsilon=8.0, steps=1).network(method.plan(graphveil.Facts.of(data)).facts)
    held = next(int(line.split()[1]) for line in open("/proc/self/status") if "VmData" in line)
    size = data.x.numel() * data.x.element_size()
    limit = held * 1024 + size * 3 // 4
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        data.x.clone()
    except (MemoryError, RuntimeError):
        pass
    else:
        raise SystemExit("the features fit: nothing is tested")
    method.fit(data, rng=secret(fixed_seed=4))
    answers = method.predict_proba(data)
    np.savez(out, answers=answers, **method.network_.state_dict())
"""


def limited(path, name, out):
    """Fit and predict in a process that may hold less than the features."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    environment["PYTHONPATH"] = str(Path(graphveil.__file__).parents[1])
    code = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(LIMITED)]
    done = subprocess.run(
        [*code, str(path), name, str(out)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is limited on Linux")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["late-graph", "dp-gnn", "dpar", "graph-split", "mlp"])
def test_features_larger_than_memory_train_to_the_same_weights(name, tmp_path):
    nodes, columns = 200_000, 512  # 410 MB, of which a process may hold 307
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(3, (nodes,), generator=generator)
    x = torch.randn(nodes, columns, generator=generator)
    x[:, :3] += 3 * torch.nn.functional.one_hot(y, 3)
    index = torch.randint(nodes, (2, 4 * nodes), generator=generator)
    data = Data(x=x, y=y, edge_index=index[:, index[0] != index[1]], num_classes=3, directed=True)
    data = split(data, (0.04, 0.01, 0.95), seed=2)
    path = write_store(data, tmp_path / "store")
    limited(path, name, tmp_path / "limited.npz")
    kind = methods.METHODS[name]
    method = kind(steps=4, **({"epsilon": 8.0} if kind.private else {}))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    method.fit(data, rng=secret(fixed_seed=4))
    answers = method.predict_proba(data)
    torch.set_num_threads(threads)
    there = np.load(tmp_path / "limited.npz")
    for parameter, value in method.network_.state_dict().items():
        assert np.array_equal(there[parameter], value.numpy()), parameter
    assert np.array_equal(there["answers"], answers.numpy())
