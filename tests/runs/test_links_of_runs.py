"""Runs on links: trained, killed and gone on with, charged, read back."""

import sys
from pathlib import Path

import pytest
import torch
from runs_cases import Crash, Given, die_at, people

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))
from methods_cases import links, links_of_people

from graphveil._errors import InvalidInputError
from graphveil.data.synthetic import social_network
from graphveil.grads.step import PrivateStep
from graphveil.graph.links import edges_as_links
from graphveil.methods.dp_link import DPLink
from graphveil.methods.open_link import OpenLink
from graphveil.runs import Run, Source

DELTA = 1e-4


class Links(Given):
    data_now = links()


class People(Given):
    data_now = links_of_people()


class Graph(Given):
    data_now = social_network(num_nodes=80, num_classes=3, num_features=5, seed=1)

    def load(self):
        return edges_as_links(super().load())


def method(**settings):
    return DPLink(**{"epsilon": 4.0, "steps": 5, "negatives": 4, "delta": DELTA} | settings)


@pytest.mark.parametrize("kind", [Links, People, Graph])
@pytest.mark.parametrize("unit", ["node", "edge"])
def test_a_run_on_links_is_trained_and_read_back(kind, unit, tmp_path):
    source = kind(data="memory")
    trained = method(unit=unit, **({} if kind is Links else {"negatives": 1}))
    metrics = Run(tmp_path / "run").train(trained, source)
    assert metrics["task"] == "link"
    assert 0 < metrics["test_mrr"] <= 1
    assert metrics["protocol"] == "full"
    read = Run(tmp_path / "run").read()
    assert read.plan_ == trained.plan_
    assert read.certificate_ == trained.certificate_
    data = source.arrange(source.load()).testing
    best, again = trained.recommend(data, top=3), read.recommend(data, top=3)
    assert (best.targets == again.targets).all()
    assert (best.scores == again.scores).all()


def test_an_open_run_promises_nothing(tmp_path):
    metrics = Run(tmp_path / "run").train(OpenLink(steps=3), Links(data="memory"))
    assert 0 < metrics["test_mrr"] <= 1
    assert Run(tmp_path / "run").read().certificate_.guarantee.epsilon == float("inf")


@pytest.mark.parametrize("unit", ["node", "edge"])
def test_a_run_that_was_killed_goes_on(unit, tmp_path, monkeypatch):
    long = method(unit=unit, steps=25)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateStep, "__call__", die_at(14))
        with pytest.raises(Crash):
            Run(tmp_path / "run").train(long, Links(data="memory"))
    again = method(unit=unit, steps=25)
    Run(tmp_path / "run").train(again, Links(data="memory"), resume=True)
    assert again.certificate_.guarantee.epsilon <= 4.0


def test_a_run_does_not_go_on_with_other_links(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(PrivateStep, "__call__", die_at(2))
        with pytest.raises(Crash):
            Run(tmp_path / "run").train(method(), Links(data="memory"))
    monkeypatch.setattr(Links, "data_now", links(seed=7))
    with pytest.raises(InvalidInputError, match="other data"):
        Run(tmp_path / "run").train(method(), Links(data="memory"), resume=True)


def test_a_run_on_links_is_charged(tmp_path, ledger):
    made = method()
    Run(tmp_path / "run").train(made, Links(data="memory"), ledger=ledger.place)
    spent = people(ledger).spent()
    assert spent == pytest.approx(made.certificate_.guarantee.epsilon, rel=1e-3)
    Run(tmp_path / "other").train(method(), Links(data="memory"), ledger=ledger.place)
    assert people(ledger).spent() > spent


@pytest.mark.parametrize("split", ["transductive", "inductive"])
def test_what_is_expected_of_edges_is_what_is_loaded(split):
    source = Source(data="social", link="edges", split=split)
    expected = source.expected()
    assert (expected.record, expected.task) == ("link", "link")
    assert expected.num_classes == expected.num_nodes
    assert (expected.num_train == expected.num_nodes) == (split == "transductive")


def test_edges_become_links_once_and_without_loops():
    graph = social_network(num_nodes=30, num_classes=3, num_features=5, seed=1)
    graph.edge_index = torch.cat([graph.edge_index, torch.tensor([[4], [4]])], 1)
    data = edges_as_links(graph)
    pairs = {tuple(sorted(pair)) for pair in graph.edge_index.t().tolist() if pair[0] != pair[1]}
    assert sorted(map(tuple, data.links.t().tolist())) == sorted(pairs)
    assert "y" not in data
    assert edges_as_links(data) is data
    graph.directed = None
    with pytest.raises(InvalidInputError, match="directed"):
        edges_as_links(graph)


@pytest.mark.parametrize("wrong", [{"train_share": 0.5}, {"classes": "2"}, {"min_class": 3}])
def test_what_is_about_labels_is_refused_with_links(wrong):
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        Source(data="social", link="edges", **wrong)


def test_other_relations_are_refused():
    with pytest.raises(InvalidInputError, match="link"):
        Source(data="social", link="friends").load()
