"""Moments and errors of a regression: what one node moves, and intervals that hold."""

import pytest
import torch
from methods_cases import changed, data_for, made

from graphveil import LateGraph, load, split
from graphveil.methods import Facts, moments
from graphveil.methods.execution import Execution


def with_values(values):
    data = changed(data_for("late-graph"), num_classes=None, task="regression")
    data.y, data.value_range = values, (0.0, 1.0)
    return data


class Sum:
    """Stands for a mechanism, and adds nothing."""

    def __init__(self):
        self.values = []

    def release(self, value, rng):
        self.values.append(value)
        return value


def sums(data, answers):
    """What goes to the two Gaussians; targets are as losses read them."""
    plan = made("late-graph").plan(Facts.of(data))
    execution, seen = Execution(plan), Sum()
    execution.release = lambda part, draw: draw(seen, None)
    moments.release_moments(execution, data)
    moments.release_errors(execution, answers, data)
    return torch.cat([value.flatten() for value in seen.values])


@pytest.mark.parametrize("end", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("answer", [-1e30, -1.0, 0.0, 1.0, 1e30])
def test_a_node_moves_moments_and_errors_by_one_at_most(end, answer):
    data = with_values(torch.linspace(0, 1, 60))
    train = data.train_mask.nonzero().flatten()
    answers = torch.linspace(-1, 1, len(train)).unsqueeze(1)
    answers[0] = answer
    data.y[train[0]] = end
    whole = sums(data, answers)
    data.y[train[0]] = -1.0  # withheld
    other = sums(data, answers)
    moved, error = (whole - other)[:2], (whole - other)[2]
    assert float(moved.norm()) <= 1 + 1e-9
    assert 0 <= float(error) <= 1 + 1e-9
    if end == 1.0:
        assert float(moved.norm()) == pytest.approx(1.0, abs=1e-4)  # the bound is reached
    if end == 1.0 and answer < -1:
        assert float(error) == pytest.approx(1.0, abs=1e-4)


def test_nine_of_ten_values_lie_in_their_intervals():
    data = split(load("hospital:lab"))
    method = LateGraph(epsilon=8.0).fit(data, progress=False)
    table = method.predict_frame(data)
    tested = data.test_mask.numpy()
    y = data.y.numpy()[tested]
    low, high = table["low"].to_numpy()[tested], table["high"].to_numpy()[tested]
    assert 0.85 < ((low <= y) & (y <= high)).mean() < 0.99
    assert (table["low"] <= table["value"]).all()
    assert table["high"].max() <= 60
