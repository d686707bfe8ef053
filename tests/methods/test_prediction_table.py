"""Predictions as a table, and data as people have it: tables, NetworkX, weights of edges."""

import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from methods_cases import OF_LABELS, OF_NODES, changed, data_for, graph, graphs, made

import graphveil
from graphveil._errors import InvalidInputError, NotFittedError
from graphveil.data.class_list import Notice
from graphveil.graph.splits import separate

COUNT = 80
IDS = [f"p{k:02}" for k in range(COUNT)]


def people(seed=0, parts=("train", "train", "val", "test")):
    """Two tables: who is older than 50 is sick, and friends are of an age."""
    rng = np.random.default_rng(seed)
    nodes = pd.DataFrame({"id": IDS, "age": rng.uniform(0, 1, COUNT), "b": rng.normal(size=COUNT)})
    nodes["label"] = np.where(nodes["age"] > 0.5, "sick", "well")
    nodes["split"] = [parts[k % len(parts)] for k in range(COUNT)]
    edges = pd.DataFrame({"source": IDS, "target": IDS[3:] + IDS[:3]})
    return nodes, edges


def as_networkx(nodes, edges):
    made_of = nx.Graph()
    made_of.add_nodes_from(nodes.set_index("id").to_dict("index").items())
    made_of.add_edges_from(edges.itertuples(index=False, name=None))
    return made_of


def refusal(function, *args, **options):
    with pytest.raises(InvalidInputError) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- tables of predictions ------------------------------------------------------------------------


def test_ids_and_names_come_back_as_they_were_written():
    nodes, edges = people()
    data = graphveil.load(nodes=nodes, edges=edges, classes=["well", "sick"])
    method = made("late-graph").fit(data)
    table = method.predict_frame(data)
    chances = method.predict_proba(data)
    assert list(table) == ["id", "prediction", "probability_well", "probability_sick"]
    assert table["id"].tolist() == IDS
    assert table["prediction"].tolist() == [["well", "sick"][c] for c in chances.argmax(1)]
    assert torch.equal(torch.tensor(table.iloc[:, 2:4].to_numpy()), chances)
    assert table.index.equals(pd.RangeIndex(COUNT))
    assert method.classes_.tolist() == ["well", "sick"]
    assert method.feature_names_in_.tolist() == ["age", "b"]
    assert method.n_features_in_ == 2


def test_names_that_are_not_public_stay_away():
    nodes, edges = people()
    method = made("late-graph").fit((nodes, edges))
    table = method.predict_frame((nodes, edges))
    assert list(table) == ["id", "prediction", "probability_0", "probability_1"]
    assert set(table["prediction"]) <= {0, 1}
    assert method.classes_.tolist() == [0, 1]
    assert not [name for name in vars(method).values() if "sick" in str(name)]


@pytest.mark.parametrize("name", OF_LABELS)
def test_every_method_has_a_table(name):
    data = data_for(name)
    method = made(name).fit(data)
    table, chances = method.predict_frame(data), method.predict_proba(data)
    assert list(table) == ["id", "prediction", *(f"probability_{c}" for c in range(3))]
    assert table["id"].tolist() == list(range(len(chances)))
    assert table["prediction"].tolist() == method.predict(data).tolist()
    assert np.array_equal(table.iloc[:, 2:].to_numpy(), chances.numpy())
    assert method.classes_.tolist() == [0, 1, 2]
    assert not hasattr(method, "feature_names_in_")


def test_parts_keep_their_ids_and_numbers():
    nodes, edges = people()
    training, testing = separate(graphveil.load(nodes=nodes, edges=edges, classes=2))
    method = made("dp-mlp").fit(training)
    assert method.predict_frame(testing)["id"].tolist() == IDS[3::4]
    del testing.ids
    assert method.predict_frame(testing)["id"].tolist() == list(range(3, COUNT, 4))


def test_ties_share_a_rank_and_what_is_no_number_comes_last():
    from graphveil.methods.prediction_table import tabulate

    nodes, edges = people()
    data = graphveil.load(nodes=nodes[:4], edges=edges[:0], classes=2)
    whole = graphveil.load(nodes=nodes, edges=edges, classes=2)
    method = made("dp-mlp").fit(changed(whole, task="binary"))
    answers = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.5, 0.5], [torch.nan, torch.nan]])
    assert tabulate(method, data, answers)["rank"].tolist() == [2, 1, 2, 4]


def test_without_a_fit_nothing_is_named():
    method = made("dp-mlp")
    for name in ("classes_", "feature_names_in_", "n_features_in_"):
        assert not hasattr(method, name)
    with pytest.raises(NotFittedError):
        method.predict_frame(graph())


# --- every task, by a schema ----------------------------------------------------------------------


COLUMNS = {
    "age": {"kind": "number", "low": 0, "high": 1},
    "ward": {"kind": "category", "values": ["north", "south"], "optional": True},
}
CLASSES = {"column": "outcome", "classes": ["well", "sick"]}
LABELS = {
    "multiclass": {"task": "multiclass", **CLASSES},
    "binary": {"task": "binary", **CLASSES},
    "ordinal": {"task": "ordinal", **CLASSES},
    "multilabel": {"task": "multilabel", "labels": ["cough", "fever"], "columns": ["c", "f"]},
    "regression": {"task": "regression", "column": "stay", "low": 0, "high": 30},
}


def stated(task):
    """Two tables with a text in them, and a schema that says what they hold."""
    nodes, edges = people()
    old = nodes["age"] > 0.5
    sick = nodes.pop("label")
    nodes = nodes.drop(columns="b").rename(columns={"id": "person"})
    nodes["ward"] = np.where(old, "north", "south")
    if task == "regression":
        nodes["stay"] = 30 * nodes["age"]
    elif task == "multilabel":
        nodes["c"], nodes["f"] = old.astype(int), 1 - old.astype(int)
    else:
        nodes["outcome"] = sick
    schema = {
        "unit": "person",
        "id": "person",
        "columns": COLUMNS,
        "label": LABELS[task],
        "edges": {"source": "a", "target": "b"},
    }
    return nodes, edges.rename(columns={"source": "a", "target": "b"}), schema


@pytest.mark.parametrize("task", LABELS)
def test_every_task_has_a_table(task):
    nodes, edges, schema = stated(task)
    data = graphveil.load(nodes=nodes, edges=edges, schema=schema)
    assert data.task == task
    method = made("late-graph").fit(data)
    table, answers = method.predict_frame(data), method.predict_proba(data)
    names = {"multilabel": ["cough", "fever"]}.get(task, ["well", "sick"])
    values = ["value", "low", "high"]
    columns = values if task == "regression" else [f"probability_{name}" for name in names]
    ranks = ["rank"] if task == "binary" else []
    assert list(table) == ["id", "prediction", *columns, *ranks]
    assert table["id"].tolist() == IDS
    shown = columns[: answers.shape[1]]
    assert np.array_equal(table[shown].to_numpy(), answers.numpy())
    if task == "regression":
        assert not hasattr(method, "classes_")
        assert table["prediction"].equals(table["value"].rename("prediction"))
        assert table["value"].between(0, 30).all()
    else:
        assert method.classes_.tolist() == names
    if task == "multilabel":
        likely = answers.numpy() > 0.5
        assert table["prediction"].tolist() == [
            tuple(name for name, is_so in zip(names, row, strict=True) if is_so) for row in likely
        ]
    if task == "binary":
        assert table.sort_values("rank")["probability_sick"].is_monotonic_decreasing
        assert (table["rank"].min(), table["rank"].dtype) == (1, "int64")


@pytest.mark.parametrize("task", LABELS)
def test_a_fitted_method_reads_tables_by_its_schema(task, tmp_path):
    nodes, edges, schema = stated(task)
    data = graphveil.load(nodes=nodes, edges=edges, schema=schema)
    method = made("late-graph").fit(data)
    wanted = method.predict_proba(data)
    assert torch.equal(method.predict_proba((nodes, edges)), wanted)
    assert method.score((nodes, edges)) == method.score(data)
    unlabelled = nodes[["ward", "person", "age"]]
    assert torch.equal(method.predict_proba((unlabelled, edges)), wanted)
    method.save(tmp_path / "run")
    again = graphveil.read(tmp_path / "run")
    assert again.schema_ == method.schema_
    assert torch.equal(again.predict_proba((nodes, edges)), wanted)
    made_of = nx.Graph()
    made_of.add_nodes_from(nodes.set_index("person").to_dict("index").items())
    made_of.add_edges_from(edges.itertuples(index=False, name=None))
    assert torch.equal(method.predict_proba(made_of), wanted)
    assert "'weight'" in refusal(method.predict, (nodes.assign(weight=1.0), edges))


def test_two_classes_are_not_ranked_unless_one_is_looked_for():
    nodes, edges = people()
    table = made("dp-mlp").fit((nodes, edges)).predict_frame((nodes, edges))
    assert "rank" not in table
    assert "rank" not in made("dp-mlp").fit(graph()).predict_frame(graph())


def test_a_noisy_table_is_charged_once():
    nodes, edges = people()
    data = graphveil.load(nodes=nodes, edges=edges, classes=2)
    method = made("late-graph").fit(data)
    before = len(method.charges_)
    table = method.predict_frame(data, mode="noisy", epsilon=1.0)
    assert len(table) == COUNT
    assert len(method.charges_) == before + 1


# --- data as people have it -----------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_NODES)
def test_fit_and_predict_take_tables_and_networkx(name):
    nodes, edges = people()
    data = graphveil.load(nodes=nodes, edges=edges)
    method = made(name).fit((nodes, edges))
    wanted = method.predict_proba(data)
    assert torch.equal(method.predict_proba((nodes, edges)), wanted)
    assert torch.equal(method.predict_proba(as_networkx(nodes, edges)), wanted)
    assert method.score((nodes, edges)) == method.score(data)
    assert made(name).fit(as_networkx(nodes, edges)).plan_ == method.plan_


def test_columns_are_taken_by_their_names():
    nodes, edges = people()
    method = made("late-graph").fit((nodes, edges))
    wanted = method.predict_proba((nodes, edges))
    turned = nodes[["split", "b", "label", "age", "id"]]
    assert torch.equal(method.predict_proba((turned, edges)), wanted)
    message = refusal(method.predict, (nodes.rename(columns={"b": "c"}), edges))
    assert "must be those that this LateGraph was trained on: 2, by their names" in message
    assert "no 'b'" in message
    assert "one more, 'c'" in refusal(method.predict, (nodes.assign(c=1.0), edges))


def test_labels_of_tables_are_the_classes_of_the_fit():
    """Somebody else's table need not have every class, and names must not move numbers."""
    nodes, edges = people()
    stated = graphveil.load(nodes=nodes, edges=edges, classes=["well", "sick"])
    method = made("late-graph").fit(stated)
    assert method.score((nodes, edges)) == method.score(stated)
    nodes["label"] = "sick"
    sick = (method.predict((nodes, edges)) == 1)[3::4].float().mean()
    assert method.score((nodes, edges)) == pytest.approx(float(sick))
    unnamed = made("late-graph").fit(people())
    assert "1 names where --classes states 2" in refusal(unnamed.score, (nodes, edges))


def test_tables_without_a_split_are_pointed_to_split():
    nodes, edges = people()
    message = refusal(made("dp-mlp").fit, (nodes.drop(columns="split"), edges))
    assert "graphveil.split(data) draws the three masks" in message


@pytest.mark.parametrize("wrong", [[1, 2], "social", 3, {"nodes": 1}], ids=str)
def test_what_is_no_graph_is_refused_in_a_line(wrong):
    message = refusal(made("dp-mlp").fit, wrong)
    assert f"Got {type(wrong).__name__} instead" in message


@pytest.mark.parametrize("attribute", ["edge_weight", "edge_attr", "edge_type"])
@pytest.mark.parametrize("name", OF_NODES)
def test_no_method_for_nodes_drops_what_is_said_of_edges(name, attribute):
    data = graph()
    weighed = changed(data, **{attribute: torch.ones(data.num_edges)})
    message = refusal(made(name).fit, weighed)
    assert f"Got data with '{attribute}'" in message
    assert f"del data.{attribute}" in message
    method = made(name).fit(data)
    assert attribute in refusal(method.predict, weighed)
    del weighed[attribute]
    assert torch.equal(method.predict_proba(weighed), method.predict_proba(data))


@pytest.mark.parametrize("name", [name for name in OF_LABELS if name not in OF_NODES])
def test_whole_graphs_count_attributes_and_refuse_weights(name):
    data = graphs()
    bonds = (torch.arange(data.num_edges) % 2).float().unsqueeze(1)
    counted = made(name, hidden_channels=32).fit(changed(data, edge_attr=bonds))
    one, other = (
        counted.predict_proba(changed(data, edge_attr=value)) for value in (bonds, 1 - bonds)
    )
    assert not torch.equal(one, other)  # they are read
    with pytest.warns(Notice, match="read no edge_attr; counts of patterns do"):
        method = made(name, conv="sum").fit(changed(data, edge_attr=bonds))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        one, other = (
            method.predict_proba(changed(data, edge_attr=value)) for value in (bonds, 1 - bonds)
        )
    assert torch.equal(one, other)  # what the notice says
    weighed = changed(data, edge_weight=torch.ones(data.num_edges))
    assert "'edge_weight'" in refusal(made(name).fit, weighed)
    from graphveil.graph.collate import uncollate

    listed = uncollate(data)
    listed[7].edge_weight = torch.ones(listed[7].num_edges)
    assert "'edge_weight'" in refusal(counted.predict, listed)


def test_attributes_of_edges_in_a_file_are_left_out_and_said(tmp_path):
    data = changed(graph(), edge_attr=torch.ones(graph().num_edges, 1))
    torch.save(data, tmp_path / "g.pt")
    with pytest.warns(Notice, match="only source and target are read; not read: edge_attr"):
        read = graphveil.load(tmp_path / "g.pt")
    assert "edge_attr" not in read
    made("dp-mlp").fit(read)
