"""Features that are a sparse tensor stay one, and give what dense ones give."""

import hashlib

import numpy as np
import pytest
import scipy.sparse
import torch
from methods_cases import changed, data_for, graph, made
from torch import Tensor
from torch.nn import functional as F

from graphveil import secret
from graphveil._errors import InvalidInputError
from graphveil.data.files import read
from graphveil.grads.clipping import Flat
from graphveil.grads.own_rows import RowExamples, RowSum
from graphveil.graph.checks import check
from graphveil.graph.messages import weigh_messages
from graphveil.graph.sparse_rows import MOST_DENSE, as_csr, is_sparse
from graphveil.graph.splits import leave_out_small_classes, separate, thin
from graphveil.methods import METHODS, Facts
from graphveil.methods.distillation import teach_student
from graphveil.methods.features import Features
from graphveil.methods.task import Classification
from graphveil.methods.terms import node_losses
from graphveil.runs.fingerprints import fingerprint_of

NODE_METHODS = [name for name, method in METHODS.items() if method.record == "node"]
LAYOUTS = {"csr": Tensor.to_sparse_csr, "coo": Tensor.to_sparse_coo}
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor:UserWarning")


def mostly_zeros(data, columns=None):
    generator = torch.Generator().manual_seed(4)
    x = data.x if columns is None else torch.randn(len(data.x), columns, generator=generator)
    return changed(data, x=x * (torch.rand(x.shape, generator=generator) < 0.3))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NODE_METHODS)
def test_every_method_gives_what_it_gives_for_dense_features(name, layout):
    dense = mostly_zeros(data_for(name))
    sparse = changed(dense, x=LAYOUTS[layout](dense.x))
    assert Facts.of(sparse) == Facts.of(dense)
    chances = [
        made(name).fit(data, rng=secret(fixed_seed=5)).predict_proba(data)
        if METHODS[name].private
        else made(name).fit(data).predict_proba(data)
        for data in (dense, sparse)
    ]
    torch.testing.assert_close(chances[1], chances[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["dp-mlp", "late-graph", "dpar", "mlp", "gnn"])
def test_wide_features_are_never_made_dense(name, monkeypatch):
    data = mostly_zeros(graph(), MOST_DENSE + 1)
    sparse = changed(data, x=data.x.to_sparse_csr())

    def refuse(*_):
        raise AssertionError("made dense")

    for used in (data, sparse):
        method = made(name, project_above=10**6, steps=2)
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "to_dense", refuse)
            method.fit(used)
            assert is_sparse(method.prepare(used))
            for mode in ("visible", "disjoint"):
                assert method.predict_proba(used, mode=mode).isfinite().all()


@pytest.mark.parametrize("how", ["power", "raw", "unit"])
@pytest.mark.parametrize("project_above", [10, 10**6])
def test_rows_are_prepared_alike(how, project_above):
    x = mostly_zeros(graph(), 40).x
    x[3] = 0.0
    features = Features(how=how, scale=3.0, projection=8, project_above=project_above, seed=1)
    expected = features.prepare(x)
    for layout in LAYOUTS.values():
        kept = features.prepare(layout(x), keep_sparse=True)
        assert is_sparse(kept) == (project_above > 40)
        for rows in (kept.to_dense(), features.prepare(layout(x))):
            torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-6)


def test_the_student_learns_the_same_from_sparse_rows():
    data = mostly_zeros(graph(), 30)
    messages = weigh_messages(data.edge_index, len(data.x))
    beliefs = F.one_hot(data.y, 3).float()
    found = [teach_student(beliefs, x, messages, 0.02) for x in (data.x, data.x.to_sparse_csr())]
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_messages_are_weighted_alike():
    data = mostly_zeros(graph(), 30)
    messages = weigh_messages(data.edge_index, len(data.x))
    found = messages.weighted(data.x.to_sparse_csr())
    assert is_sparse(found)
    torch.testing.assert_close(found.to_dense(), messages.weighted(data.x))


def test_a_noisy_prediction_reads_sparse_rows():
    data = mostly_zeros(graph(), 30)
    data = changed(data, x=data.x.to_sparse_csr())
    method = made("late-graph", project_above=10**6).fit(data)
    assert len(method.predict(data, mode="noisy", epsilon=1.0)) == len(data.x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_sparse_data_are_those_of_dense_data(layout):
    dense = graph()
    sparse = changed(dense, x=LAYOUTS[layout](dense.x))
    for part in (
        lambda data: separate(data)[1],
        lambda data: thin(data, 0.5, remove=True),
        lambda data: leave_out_small_classes(data, 1),
    ):
        found, expected = part(sparse), part(dense)
        assert torch.equal(found.x.to_dense(), expected.x)
        assert torch.equal(found.edge_index, expected.edge_index)
        assert torch.equal(found.node_id, expected.node_id)


def test_a_ledger_knows_data_in_any_layout():
    dense = graph()
    digests = {
        fingerprint_of(changed(dense, x=x), hashlib.sha256())
        for x in (dense.x, dense.x.to_sparse_csr(), dense.x.to_sparse_coo())
    }
    assert len(digests) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_not_finite_is_named(layout):
    data = graph()
    x = data.x.clone()
    x[7, 2] = float("nan")
    with pytest.raises(InvalidInputError, match="nan at node 7, column 2"):
        check(changed(data, x=LAYOUTS[layout](x)))


def test_sparse_features_of_many_graphs_and_sparse_labels_are_refused():
    data = data_for("graph-dpsgd")
    with pytest.raises(InvalidInputError, match="many may not"):
        check(changed(data, x=data.x.to_sparse_csr()))
    data = graph()
    with pytest.raises(InvalidInputError, match="'y' parameter must be a dense tensor"):
        check(changed(data, y=data.y.to_sparse_coo()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_may_hold_sparse_features(layout, tmp_path):
    data = mostly_zeros(graph())
    torch.save(changed(data, x=LAYOUTS[layout](data.x)), tmp_path / "graph.pt")
    found = read(tmp_path / "graph.pt")
    assert is_sparse(found.x)
    assert np.array_equal(as_csr(found.x).toarray(), data.x.numpy())


def test_a_file_whose_sparse_features_lie_outside_is_refused(tmp_path):
    data = graph()
    rows, columns = torch.tensor([0, *[1] * len(data.x)]), torch.tensor([10**9])
    x = torch.sparse_csr_tensor(
        rows, columns, torch.ones(1), size=tuple(data.x.shape), check_invariants=False
    )
    torch.save(changed(data, x=x), tmp_path / "graph.pt")
    with pytest.raises(InvalidInputError, match=r"graph\.pt"):
        read(tmp_path / "graph.pt")


# --- sparse tensors that torch did not look at ----------------------------------------------------


def repeated(times):
    """One row that names a column so many times, and one that does not."""
    starts, columns = torch.tensor([0, times, times + 1]), torch.tensor([1] * times + [0])
    return torch.sparse_csr_tensor(starts, columns, torch.ones(times + 1), size=(2, 3))


@pytest.mark.parametrize("flagged", [False, True])
def test_a_column_that_stands_twice_in_a_row_is_added_up_before_rows_are_measured(flagged):
    rows = repeated(400)
    matrix = scipy.sparse.csr_array(
        (rows.values().numpy(), rows.col_indices().numpy(), rows.crow_indices().numpy()),
        shape=rows.shape,
    )
    if flagged:  # what is noted of a matrix is not believed
        matrix.has_canonical_format = True
    labels = torch.tensor([0, 1])
    for given in (rows, matrix):
        examples = RowExamples(given, labels)
        assert examples.squares.tolist() == [400.0**2, 1.0]
        layer, bound = torch.nn.Linear(3, 2), 0.5
        clipped = RowSum(layer, node_losses(Classification(num_classes=2)), Flat(bound))
        total = clipped(examples.batches(torch.tensor([0])))
        assert sum(part.square().sum() for part in total.values()).sqrt() <= bound
    prepared = Features(how="power", scale=4.0, projection=8, project_above=9, seed=0)
    assert torch.allclose(
        prepared.prepare(rows, keep_sparse=True).to_dense(), prepared.prepare(rows.to_dense())
    )


@pytest.mark.parametrize("column", [-1, 3])
def test_an_entry_outside_the_matrix_is_refused(column):
    data = graph(nodes=12)
    x = torch.sparse_csr_tensor(
        torch.arange(13), torch.tensor([0] * 11 + [column]), torch.ones(12), size=(12, 3)
    )
    with pytest.raises(InvalidInputError, match="inside it"):
        check(changed(data, x=x))
