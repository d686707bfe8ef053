"""Replays: every method and unit holds, and what a replay says is what brute force says."""

import copy

import pytest
import torch
from audit_cases import PRIVATE, data_of, make, make_short
from torch import nn

from graphveil._errors import InvalidInputError
from graphveil.audit import cases
from graphveil.audit.neighbours import delete_edge, leave, neighbours, remove, withhold
from graphveil.audit.replay import replay, replay_steps
from graphveil.audit.resuming import replay_resume
from graphveil.grads import make_private

SETTINGS = [
    ("dp-gnn", {"num_layers": 2, "sender_cap": 2, "conv": "gat", "receiver_cap": 2}, "crowd"),
    ("dp-gnn", {"unit": "edge"}, "repeated"),
    ("dp-gnn", {"relation": "remove", "public_degree": 30, "sender_cap": None}, "hub"),
    ("dp-gnn", {"clipping": "quantile"}, "outlier"),
    ("gap", {"unit": "edge", "weighting": "attention"}, "small"),
    ("gap", {"weighting": "attention", "messages": "label", "sender_cap": 3}, "hub"),
    ("dpar", {"variant": "em1"}, "hub"),
    ("dpar", {"variant": "gm", "graph_rate": 0.5}, "chain"),
    ("graph-split", {"clip_by": "group", "splits": 4, "fresh_groups": 1}, "hub"),
    ("graph-split", {"clip_by": "document", "splits": 3, "dropout": 0.5}, "hub"),
    ("graph-split", {"unit": "edge", "clip_by": "group", "splits": 4}, "crowd"),
    ("graph-dpsgd", {"class_weights": "noisy"}, "one large"),
]


@pytest.mark.parametrize("name", PRIVATE)
def test_every_method_holds(name):
    finding = replay(make_short(name), data_of(name), most=2)
    assert finding.holds, finding.violations
    assert finding.figures["neighbours"] == 2
    assert finding.figures["removed"] == 1  # the replay is not blind


@pytest.mark.parametrize(("name", "settings", "case"), SETTINGS, ids=str)
def test_every_unit_and_setting_holds(name, settings, case):
    most = 4 if settings.get("splits") == 4 else 2  # few edges lie within one of four groups
    finding = replay(make_short(name, **settings), data_of(name, case), most=most)
    assert finding.holds, finding.violations
    assert (
        finding.figures["removed"] + finding.figures["altered"] > 0 or not finding.figures["steps"]
    )


def about(data, task):
    """The same data about another target."""
    data = copy.copy(data)
    data.task = task
    if task == "multilabel":
        data.y = torch.stack([data.y == 0, data.y > 0], 1).long()
        data.num_classes = 2
    elif task == "regression":
        data.y = data.y.float() + 0.1 * torch.arange(len(data.y)) % 1
        data.value_range = (0.0, 3.0)
    return data


OTHER_TASKS = [
    ("late-graph", "regression", {}),
    ("late-graph", "multilabel", {}),
    ("late-graph", "ordinal", {"class_weights": "noisy"}),
    ("dp-mlp", "multiclass", {"class_weights": "noisy"}),
    ("gap", "regression", {}),
    ("gap", "multiclass", {"class_weights": "noisy"}),
    ("dpar", "multilabel", {"class_weights": (1.0, 0.5)}),
    ("dp-gnn", "regression", {"huber": 0.2}),
    ("graph-split", "multilabel", {"clip_by": "group", "splits": 4}),
    ("graph-dpsgd", "regression", {}),
]


@pytest.mark.parametrize(("name", "task", "settings"), OTHER_TASKS, ids=str)
def test_other_tasks_and_class_weights_hold(name, task, settings):
    data = about(data_of(name), task)
    finding = replay(make_short(name, **settings), data, most=3)
    assert finding.holds, finding.violations
    assert finding.figures["removed"] + finding.figures["altered"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_every_method_holds_on_every_case(name):
    for case in cases.graph_cases() if name == "graph-dpsgd" else cases.node_cases():
        finding = replay(make_short(name), data_of(name, case), name=case, most=7)  # all extremes
        assert finding.holds, finding.violations


def test_a_replay_gives_the_same_answer_twice():
    method, data = make("dp-gnn"), data_of("dp-gnn")
    assert replay(method, data, most=1) == replay(method, data, most=1)


# --- neighbours -----------------------------------------------------------------------------------


def test_a_withheld_node_keeps_its_place_and_nothing_else():
    data = data_of("dp-gnn")
    other = withhold(data, 0)
    assert not other.x[0].any()
    assert other.y[0] == -1
    assert not (other.edge_index[0] == 0).any()
    assert (other.edge_index[1] == 0).any()  # others go on naming it
    assert torch.equal(other.x[1:], data.x[1:])
    assert torch.equal(other.train_mask, data.train_mask)
    assert not (remove(data, 0).edge_index == 0).any()
    assert data.x[0].any()  # the data set itself is as it was
    assert "withheld" not in data


def test_a_withheld_sparse_row_is_empty():
    data = data_of("dp-gnn")
    data = copy.copy(data)
    dense, data.x = data.x, data.x.to_sparse_csr()
    other = withhold(data, 3).x.to_dense()
    assert not other[3].any()
    assert torch.equal(other[4:], dense[4:])


def test_a_deleted_edge_is_gone_however_often_it_stands_there():
    data = data_of("dp-gnn", "repeated")
    first, second = data.edge_index[:, 0].tolist()
    other = delete_edge(data, first, second, directed=False)
    assert other.edge_index.shape[1] == data.edge_index.shape[1] - 6
    assert delete_edge(data, first, second, directed=True).edge_index.shape[1] == (
        data.edge_index.shape[1] - 3
    )


def test_a_graph_that_left_has_no_node():
    data = data_of("graph-dpsgd")
    other = leave(data, 2)
    assert not (other.batch == 2).any()
    assert len(other.y) == len(data.y)
    assert int(other.edge_index.max()) < len(other.x)
    kept = data.x[data.batch == 5]
    assert torch.equal(other.x[other.batch == 5], kept)


def test_extreme_units_come_first_and_none_twice():
    data = data_of("dp-gnn", "hub")
    named = [one.record for one in neighbours(data, "node", most=40)]
    assert len(named) == len(set(named)) == len(data.x)
    assert 0 in named[:3]  # the hub


def test_a_user_cannot_train_on_withheld_rows():
    with pytest.raises(InvalidInputError, match="withheld"):
        make("dp-gnn").fit(withhold(data_of("dp-gnn"), 1))


# --- a module of one's own ------------------------------------------------------------------------


def rows(count=20):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, generator=generator), torch.arange(count) % 3


def build(data, rng, module=None):
    torch.manual_seed(5)
    module = (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) if module is None else module
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return make_private(module, optimizer, data, sample_rate=0.5, noise_multiplier=1.0, rng=rng)


def without(data, row):
    x, y = (value.clone() for value in data)
    x[row] = 0
    return x, y


def test_a_module_of_ones_own_holds():
    data = rows()
    others = [(f"row {row}", without(data, row), [row]) for row in (0, 7)]
    finding = replay_steps(build, data, others)
    assert finding.holds, finding.violations


def test_a_module_that_drops_units_holds():
    def drop(data, rng):
        torch.manual_seed(5)
        return build(data, rng, nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))

    data = rows()
    finding = replay_steps(drop, data, [("row 3", without(data, 3), [3])])
    assert finding.holds, finding.violations


def neighbour(data):
    return [("row 3", without(data, 3), [3])]


def test_a_replay_that_would_try_nothing_is_refused():
    data = rows()
    with pytest.raises(InvalidInputError, match="must hold a neighbour"):
        replay_steps(build, data, [])
    with pytest.raises(InvalidInputError, match="must differ from the data"):
        replay_steps(build, data, [("same", rows(), [])])
    with pytest.raises(InvalidInputError, match="'most' parameter"):
        replay(make("dp-mlp"), data_of("dp-mlp"), most=0)
    lonely = copy.copy(data_of("dp-gnn"))
    lonely.edge_index = lonely.edge_index[:, :0]
    with pytest.raises(InvalidInputError, match="must have one undirected edge at least"):
        replay(make("dp-gnn", unit="edge"), lonely)


def test_worlds_that_cannot_be_compared_are_refused():
    data = rows()
    fewer = tuple(value[1:] for value in data)
    with pytest.raises(InvalidInputError, match="as many loss terms as the data, 20"):
        replay_steps(build, data, [("row 0", fewer, [0])])
    with pytest.raises(InvalidInputError, match="give the stream on"):
        replay_steps(lambda data, rng: build(data, None), data, neighbour(data))

    def unseeded(data, rng):
        module = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        return make_private(module, optimizer, data, sample_rate=0.5, noise_multiplier=1, rng=rng)

    with pytest.raises(InvalidInputError, match="the same weights every time"):
        replay_steps(unseeded, data, neighbour(data))


def test_rows_that_were_centred_on_the_data_are_caught():
    def centre(data, rng):
        x, y = data
        return build((x - x.mean(0), y), rng)

    data = rows()
    finding = replay_steps(centre, data, [("row 3", without(data, 3), [3])])
    assert any("more terms change" in str(violation) for violation in finding.violations)


# --- runs that were killed ------------------------------------------------------------------------


def test_a_killed_run_uses_no_noise_twice(tmp_path):
    finding = replay_resume(make("late-graph", steps=6), data_of("late-graph"), tmp_path / "run")
    assert finding.holds, finding.violations
    assert finding.figures["killed after"] == 3
