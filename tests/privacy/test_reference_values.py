"""The reference table of the design, each figure computed there twice and independently.

A row is one training run of the node-level method: N nodes, batches of B, at most K messages sent
by a node, noise of `ratio` times the published sensitivity 2 (K + 1) C.
"""

import pytest

from graphveil.privacy import _pld, accounting
from graphveil.privacy.events import (
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    repeated,
)

ROWS = {
    "arxiv-short": (90941, 10000, 7, 1.0, 100, 1e-6),
    "arxiv-long": (90941, 10000, 7, 1.0, 1000, 1e-6),
    "products": (196615, 10000, 10, 0.8, 1000, 1e-6),
    "small": (2000, 200, 7, 1.0, 500, 1e-4),
}
TOLERANCE = 0.005


def in_table(value):
    return pytest.approx(value, rel=TOLERANCE)


def step_of(row):
    population, batch, K, ratio, steps, delta = ROWS[row]
    step = SampledGaussianDpEvent(
        rate=batch / population, noise_multiplier=ratio * 2 * (K + 1), removed=1, altered=K
    )
    return step, steps, delta


@pytest.mark.parametrize(
    "row, forward, reverse",
    [
        ("arxiv-short", 5.056, 5.046),
        ("arxiv-long", 20.168, 20.149),
        ("products", 10.455, 10.450),
        ("small", 9.411, 9.402),
    ],
)
def test_two_sided_loss_distributions(row, forward, reverse):
    step, steps, delta = step_of(row)
    both = [
        _pld.Composition([(losses, steps)]).epsilon(delta)
        for losses in _pld.discretise(step, interval=5e-4)
    ]
    assert both == [in_table(forward), in_table(reverse)]
    # 0.5 % would let the directions change places; they are 0.05 to 0.2 % apart.
    assert both[0] - both[1] == pytest.approx(forward - reverse, abs=1.5e-3)
    assert accounting.price(repeated(step, steps), delta).pld == in_table(forward)


@pytest.mark.parametrize("own_term, column", [("2C", 0), ("C", 1)])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize(
    "row, figures",
    [
        ("arxiv-short", (8.89, 8.32)),
        ("arxiv-long", (35.54, 32.90)),
        ("products", (20.95, 19.92)),
        ("small", (17.12, 15.87)),
    ],
)
def test_coupled_loss_distributions(row, sampling, own_term, column, figures):
    """The node's own term either turns into another (2C, as published) or vanishes (C)."""
    population, batch, K, ratio, steps, delta = ROWS[row]
    event = RevealedCountGaussianDpEvent(
        noise_multiplier=ratio * 2 * (K + 1),
        removed=0 if own_term == "2C" else 1,
        altered=K + 1 if own_term == "2C" else K,
        **(
            {"population": population, "batch": batch}
            if sampling == "fixed"
            else {"rate": batch / population}
        ),
    )
    assert accounting.price(repeated(event, steps), delta).pld == in_table(figures[column])


@pytest.mark.parametrize("row, figure", [("arxiv-short", 5.41), ("arxiv-long", 21.35)])
def test_renyi_divergences_of_the_same_pair(row, figure):
    step, steps, delta = step_of(row)
    assert accounting.price(repeated(step, steps), delta).rdp == in_table(figure)
