"""Every fault of a graph is one sentence with the value, the rule and the way out."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, HeteroData

from graphveil._errors import InvalidInputError
from graphveil.graph.checks import (
    MASKS,
    check,
    num_classes_of,
    num_records,
    public_of,
    record_of,
    unprotected_of,
)
from graphveil.graph.splits import separate

NAN, INF = float("nan"), float("inf")


def graph(**changes):
    data = Data(
        x=torch.ones(5, 3),
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]),
        y=torch.tensor([0, 1, 2, 0, 1]),
        train_mask=torch.tensor([1, 1, 1, 0, 0]).bool(),
        val_mask=torch.tensor([0, 0, 0, 1, 0]).bool(),
        test_mask=torch.tensor([0, 0, 0, 0, 1]).bool(),
    )
    for name, value in changes.items():
        if value is None:
            del data[name]
        else:
            data[name] = value
    return data


def with_value(value, node=3, column=1):
    x = torch.ones(5, 3)
    x[node, column] = value
    return x


def mask(*bits):
    return torch.tensor(bits).bool()


FAULTS = {
    "no features": (dict(x=None), "'x'", "Got nothing"),
    "features as a list": (dict(x=[[1.0]] * 5), "'x'", "Got list"),
    "whole-number features": (dict(x=torch.ones(5, 3).long()), "'x'", "torch.int64"),
    "one-dimensional features": (dict(x=torch.ones(5)), "'x'", r"\(5,\)"),
    "no node": (dict(x=torch.ones(0, 3)), "'x'", r"\(0, 3\)"),
    "no column": (dict(x=torch.ones(5, 0)), "'x'", r"\(5, 0\)"),
    "NaN": (dict(x=with_value(NAN)), "'x'", "nan at node 3, column 1"),
    "odd label": (dict(y=torch.tensor([0, 1, 900, 1, 0])), "'y'", "900 at node 2"),
    "infinity": (dict(x=with_value(-INF)), "'x'", "-inf at node 3, column 1"),
    "num_nodes": (dict(num_nodes=7), "'x'", "5 rows for num_nodes=7"),
    "no edge_index": (dict(edge_index=None), "'edge_index'", "Got nothing"),
    "float edges": (dict(edge_index=torch.zeros(2, 3)), "'edge_index'", "torch.float32"),
    "pairs": (dict(edge_index=torch.zeros(3, 2).long()), "'edge_index'", r"\(3, 2\)"),
    "negative id": (dict(edge_index=torch.tensor([[0, 1], [1, -1]])), "'edge_index'", "1 -> -1"),
    "absent node": (dict(edge_index=torch.tensor([[0, 5], [1, 0]])), "'edge_index'", "5 -> 0"),
    "no labels": (dict(y=None), "'y'", "Got nothing"),
    "float labels": (dict(y=torch.ones(5)), "'y'", "torch.float32"),
    "label column": (dict(y=torch.zeros(5, 1).long()), "'y'", r"\(5, 1\)"),
    "short labels": (dict(y=torch.zeros(4).long()), "'y'", r"\(4,\)"),
    "label too large": (
        dict(y=torch.tensor([0, 1, 2, 0, 9]), num_classes=3),
        "'y'",
        "9 at node 4",
    ),
    "unlabelled in training": (dict(y=torch.tensor([0, -1, 2, 0, 1])), "'y'", "-1 at node 1"),
    "one class": (dict(y=torch.tensor([1, 1, 1, 0, 1])), "'y'", "only class 1"),
    "num_classes": (dict(num_classes=0), "'num_classes'", "Got 0"),
    "no mask": (dict(test_mask=None), "'test_mask'", "Got nothing"),
    "mask of numbers": (dict(val_mask=torch.zeros(5)), "'val_mask'", "torch.float32"),
    "short mask": (dict(val_mask=mask(0, 1)), "'val_mask'", r"\(2,\)"),
    "many splits": (dict(val_mask=torch.zeros(5, 10).bool()), "'val_mask'", r"\(5, 10\)"),
    "overlap": (dict(test_mask=mask(0, 0, 1, 0, 1)), "'train_mask'", "node 2 in both"),
    "no training node": (dict(train_mask=mask(0, 0, 0, 0, 0)), "'train_mask'", "empty"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named_in_the_house_sentence(fault):
    changes, name, got = FAULTS[fault]
    with pytest.raises(InvalidInputError) as caught:
        check(graph(**changes))
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(rf"The {name} parameter must be .*Got .* instead", message)
    assert re.search(got, message)


def test_a_good_graph_comes_back_as_it_is():
    data = graph()
    assert check(data) is data


def test_edges_are_optional_in_number_but_not_in_kind():
    assert check(graph(edge_index=torch.empty(2, 0, dtype=torch.long))).num_edges == 0


def test_unlabelled_nodes_are_fine_outside_training():
    check(graph(y=torch.tensor([0, 1, 2, -1, -1])))
    check(graph(y=torch.tensor([0, -1, 2, 0, 1]), train_mask=mask(1, 0, 1, 0, 0)))


def test_labels_and_masks_are_required_only_when_asked_for():
    bare = graph(y=None, train_mask=None, val_mask=None, test_mask=None)
    check(bare, labels=False, masks=False)
    check(graph(y=torch.zeros(5, dtype=torch.long)), labels=False)
    with pytest.raises(InvalidInputError, match=r"'train_mask'.*graphveil\.split"):
        check(bare, labels=False)
    with pytest.raises(InvalidInputError, match="'y'"):
        check(bare, masks=False)


def test_what_is_there_is_checked_even_where_it_is_not_required():
    with pytest.raises(InvalidInputError, match="'y'"):
        check(graph(y=torch.ones(5)), labels=False, masks=False)
    with pytest.raises(InvalidInputError, match="'val_mask'"):
        check(graph(val_mask=mask(0, 1)), labels=False, masks=False)


def test_large_features_whose_sum_overflows_are_finite():
    check(graph(x=torch.full((5, 3), 3e38)))


def test_num_classes_is_the_declared_number_or_the_largest_label_plus_one():
    assert num_classes_of(graph()) == 3
    assert num_classes_of(graph(num_classes=7)) == 7
    with pytest.raises(InvalidInputError, match="at most 1"):
        check(graph(), num_classes=2)


def test_only_homogeneous_data_is_taken():
    with pytest.raises(InvalidInputError, match="HeteroData"):
        check(HeteroData())


@settings(max_examples=60, deadline=None)
@given(st.integers(-3, 8), st.integers(-3, 8))
def test_an_edge_passes_if_and_only_if_both_ends_exist(source, target):
    data = graph(edge_index=torch.tensor([[0, source], [1, target]]))
    if 0 <= source < 5 and 0 <= target < 5:
        check(data)
    else:
        with pytest.raises(InvalidInputError, match=f"{source} -> {target}"):
            check(data)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([(), *[(m,) for m in MASKS], MASKS[:2], MASKS[1:]]), min_size=5))
def test_masks_pass_if_and_only_if_they_are_disjoint_and_somebody_is_trained_on(parts):
    parts = parts[:5]
    data = graph(**{m: torch.tensor([m in part for part in parts]) for m in MASKS})
    if all(len(part) < 2 for part in parts) and any("train_mask" in part for part in parts):
        check(data, labels=False)
    else:
        with pytest.raises(InvalidInputError):
            check(data, labels=False)


def test_features_that_overflow_where_networks_compute_are_refused():
    x = torch.ones(4, 2, dtype=torch.float64)
    edges = torch.empty(2, 0, dtype=torch.long)
    assert check(Data(x=x, edge_index=edges), labels=False, masks=False)
    x[2, 1] = 1e300
    with pytest.raises(InvalidInputError, match=r"1e\+300 at node 2, column 1"):
        check(Data(x=x, edge_index=edges), labels=False, masks=False)


# --- Many graphs ----------------------------------------------------------------------------------


def graphs(**changes):
    """Four graphs, of which the third has no node; nodes in no order."""
    data = Data(
        x=torch.ones(5, 3),
        edge_index=torch.tensor([[0, 2, 4], [2, 0, 1]]),
        y=torch.tensor([0, 1, 1, 0]),
        batch=torch.tensor([0, 3, 0, 1, 3]),
        num_graphs=4,
        train_mask=mask(1, 1, 0, 0),
        val_mask=mask(0, 0, 1, 0),
        test_mask=mask(0, 0, 0, 1),
    )
    for name, value in changes.items():
        if value is None:
            del data[name]
        else:
            data[name] = value
    return data


GRAPH_FAULTS = {
    "NaN feature": (dict(x=with_value(NAN)), "'x'", "nan at node 0 of graph 1, column 1"),
    "no node": (dict(x=torch.ones(0, 3)), "'x'", r"\(0, 3\)"),
    "absent node": (dict(edge_index=torch.tensor([[0], [5]])), "'edge_index'", "0 -> 5"),
    "negative node": (dict(edge_index=torch.tensor([[-1], [0]])), "'edge_index'", "-1 -> 0"),
    "between": (dict(edge_index=torch.tensor([[0], [1]])), "'edge_index'", "from graph 0 to 3"),
    "batch type": (dict(batch=torch.zeros(5)), "'batch'", "torch.float32"),
    "batch list": (dict(batch=[0, 0, 0, 0, 0]), "'batch'", "list"),
    "short batch": (dict(batch=torch.zeros(4).long()), "'batch'", r"\(4,\)"),
    "negative batch": (dict(batch=torch.tensor([0, 3, 0, -1, 3])), "'batch'", "-1 at node 3"),
    "large batch": (dict(batch=torch.tensor([0, 3, 0, 4, 3])), "'batch'", "4 at node 3"),
    "no number": (dict(num_graphs=None), "'num_graphs'", "nothing"),
    "number 0": (dict(num_graphs=0), "'num_graphs'", "0"),
    "number 1.5": (dict(num_graphs=1.5), "'num_graphs'", "1.5"),
    "labels of nodes": (dict(y=torch.zeros(5).long()), "'y'", r"\(5,\)"),
    "label too large": (dict(num_classes=2, y=torch.tensor([0, 1, 9, 0])), "'y'", "9 at graph 2"),
    "unlabelled": (dict(y=torch.tensor([0, -1, 1, 0])), "'y'", "-1 at graph 1"),
    "one class": (dict(y=torch.tensor([1, 1, 0, 0])), "'y'", "only class 1"),
    "masks of nodes": (dict(val_mask=mask(0, 0, 0, 0, 1)), "'val_mask'", r"\(5,\)"),
    "overlap": (dict(test_mask=mask(0, 1, 0, 1)), "'train_mask'", "graph 1 in both"),
    "no training graph": (dict(train_mask=mask(0, 0, 0, 0)), "'train_mask'", "empty"),
    "short edge_attr": (dict(edge_attr=torch.ones(2, 1)), "'edge_attr'", r"\(2, 1\)"),
    "flat edge_attr": (dict(edge_attr=torch.ones(3)), "'edge_attr'", r"\(3,\)"),
    "whole edge_attr": (dict(edge_attr=torch.ones(3, 1).long()), "'edge_attr'", "int64"),
    "infinite pos": (dict(pos=torch.full((5, 2), INF)), "'pos'", "inf at node 0"),
}


@pytest.mark.parametrize("fault", GRAPH_FAULTS)
def test_every_fault_of_many_graphs_is_named_in_the_house_sentence(fault):
    changes, name, got = GRAPH_FAULTS[fault]
    with pytest.raises(InvalidInputError) as caught:
        check(graphs(**changes))
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(rf"The {name} parameter must be .*Got .* instead", message)
    assert re.search(got, message)


def test_many_graphs_come_back_as_they_are_and_are_counted():
    data = graphs(edge_attr=torch.ones(3, 2), pos=torch.ones(5, 2))
    assert check(data) is data
    assert (record_of(data), num_records(data), num_classes_of(data)) == ("graph", 4, 2)
    assert (record_of(graph()), num_records(graph())) == ("node", 5)
    batch = Batch.from_data_list([Data(x=torch.ones(2, 1), edge_index=torch.ones(2, 0).long())] * 3)
    assert num_records(check(batch, labels=False, masks=False)) == 3


def test_the_wanted_kind_of_record_is_checked():
    assert check(graphs(), record="graph")
    assert check(graph(), record="node")
    with pytest.raises(InvalidInputError, match=r"many graphs, each a record\. Got one graph"):
        check(graph(), record="graph")
    with pytest.raises(InvalidInputError, match=r"one graph.*Got many graphs"):
        check(graphs(), record="node")
    with pytest.raises(InvalidInputError, match=r"Got list.*graph\.collate"):
        check([graph()])


def test_what_was_declared_public_is_public_and_unprotected():
    data = graph(unprotected=["the chess club"], public=["the year"])
    assert unprotected_of(data) == ("the chess club",)
    assert public_of(data)[-2:] == ("the year", "the chess club")
    data.public = ["the chess club", "the list of members: DECLARED PUBLIC"]
    assert unprotected_of(data) == ("the chess club", "the list of members: DECLARED PUBLIC")
    assert public_of(data)[-2:] == tuple(data.public)
    part, _ = separate(graph(unprotected=["the chess club"]))
    assert unprotected_of(part) == ("the chess club",)
    with pytest.raises(InvalidInputError, match="'unprotected'"):
        unprotected_of(graph(unprotected=["<b>"]))
