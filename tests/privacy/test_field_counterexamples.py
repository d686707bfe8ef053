"""Claims of the field that do not hold, each against a counterexample of a few nodes.

What is tested is the rule that a work states or that its code has, written down here anew in a few
lines; field.toml says where it was read.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats


def undirected(nodes: int, *pairs: tuple[int, int]) -> np.ndarray:
    adjacency = np.zeros((nodes, nodes))
    for u, v in pairs:
        adjacency[u, v] = adjacency[v, u] = 1
    return adjacency


def unit_rows(nodes: int, columns: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(nodes, columns))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# --- sums over neighbours: GAP, ProGAP, DPDGC -----------------------------------------------------


def test_an_undirected_edge_moves_two_rows_of_a_sum():
    """Charged is 1, the norm of one message (GAP, ProGAP) or of one row of W (DPDGC)."""
    rows = unit_rows(5, 3)
    path = [(0, 1), (1, 2), (2, 3), (3, 4)]
    for edge in path:
        others = [pair for pair in path if pair != edge]
        moved = (undirected(5, *path) - undirected(5, *others)) @ rows
        assert np.linalg.norm(moved) == pytest.approx(math.sqrt(2))
        assert np.count_nonzero(np.linalg.norm(moved, axis=1)) == 2
    one_message = np.zeros((5, 5))
    one_message[1, 0] = 1  # a directed edge moves one row, as charged
    assert np.linalg.norm(one_message @ rows) == pytest.approx(1.0)


def cache(adjacency, rows, noise):
    """GAP's: the encoding, then sum, noise and normalisation for each hop; a block a hop."""
    blocks = [rows]
    for drawn in noise:
        rows = adjacency @ rows + drawn
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        blocks.append(rows)
    return np.stack(blocks)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_the_cache_shows_a_nodes_own_encoding_without_noise(scale):
    """However large the noise, node 0 of two worlds that differ in it is told apart for sure."""
    adjacency = undirected(4, (0, 1), (1, 2), (2, 3))
    present = unit_rows(4, 3)
    replaced = present.copy()
    replaced[0] = -replaced[0]
    rng = np.random.default_rng(1)
    for _ in range(20):
        first, second = (
            cache(adjacency, rows, scale * rng.normal(size=(2, 4, 3)))
            for rows in (present, replaced)
        )
        assert np.array_equal(first[0, 0], present[0])
        assert np.array_equal(second[0, 0], -present[0])


def clipped_sum(adjacency, labels, bound):
    """Gradients of a linear softmax of two classes at weight 0, a row of A each."""
    residual = 0.5 - np.eye(2)[labels]
    gradients = adjacency[:, :, None] * residual[:, None, :]
    norms = np.linalg.norm(gradients, axis=(1, 2), keepdims=True)
    return (gradients * np.minimum(1, bound / np.maximum(norms, 1e-300))).sum(0)


@pytest.mark.parametrize("degree", [4, 8, 100])
def test_altered_rows_that_agree_move_the_sum_by_their_number(degree):
    """DPDGC, node: node 0 is replaced by one that knows others. Charged is 2 sqrt(D + 1) C."""
    first, second = range(1, degree + 1), range(degree + 1, 2 * degree + 1)
    labels = np.array([0] + degree * [0] + degree * [1])
    worlds = [undirected(2 * degree + 1, *((0, v) for v in known)) for known in (first, second)]
    assert all(world.sum(0).max() <= degree for world in worlds)
    bound = 0.1
    moved = np.linalg.norm(np.subtract(*(clipped_sum(world, labels, bound) for world in worlds)))
    assert moved >= 2 * degree * bound * (1 - 1e-12)
    assert moved > 1.5 * 2 * math.sqrt(degree + 1) * bound


# --- CARIBOU --------------------------------------------------------------------------------------


def as_released(adjacency, features, noise, *, lipschitz, mixed, beta):
    """Layers of the released code: aggregate, add noise, project unless last, aggregate again."""

    def aggregate(rows, mean):
        weight = np.sqrt(adjacency.sum(0))
        neighbours = (adjacency / np.outer(weight, weight)) @ rows
        return lipschitz * (mixed * neighbours + (1 - mixed) * mean) + beta * features

    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    for layer, drawn in enumerate(noise):
        rows = aggregate(rows, rows.mean(0)) + drawn
        if layer != len(noise) - 1:
            rows = rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
        last_noisy = rows
        rows = aggregate(rows, rows.mean(1, keepdims=True))
    return rows, last_noisy


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("mixed", [1.0, 0.95])  # alpha_1 of the scripts, and the default
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_product_after_the_last_noise_tells_an_edge_for_sure(layers, mixed, scale):
    """A ring of four nodes, and the path that is left without the edge {0, 3}.

    On the ring nodes 0 and 2 have the same neighbours. What their rows differ by, public features
    aside, is then the same in every column; on the path it never is.
    """
    ring = undirected(4, (0, 1), (1, 2), (2, 3), (0, 3))
    path = undirected(4, (0, 1), (1, 2), (2, 3))
    features, rng = unit_rows(4, 3), np.random.default_rng(2)
    spreads = {"ring": [], "path": [], "ring before the product": []}
    for _ in range(20):
        for name, graph in (("ring", ring), ("path", path)):
            noise = scale * rng.normal(size=(layers, 4, 3))
            settings = {"lipschitz": 0.6, "mixed": mixed, "beta": 10.0}
            rows, last_noisy = as_released(graph, features, noise, **settings)
            spreads[name].append(np.ptp((rows - 10.0 * features)[0] - (rows - 10.0 * features)[2]))
            if name == "ring":
                spreads["ring before the product"].append(np.ptp(last_noisy[0] - last_noisy[2]))
    assert max(spreads["ring"]) < 1e-11 * scale * 1e3
    assert min(spreads["path"]) > 1e-3 * scale
    assert min(spreads["ring before the product"]) > 1e-3 * scale


# --- HeterPoisson's noise -------------------------------------------------------------------------


def density_of_noise(radius, weights):
    """sqrt(W) N(0, I) in so many dimensions, W ~ Exp(1), at a distance from its centre."""

    def log_term(log_w):
        w = np.exp(log_w)
        return log_w - w - weights / 2 * np.log(2 * math.pi * w) - radius**2 / (2 * w)

    grid = np.linspace(-40, 6, 40_001)
    return float(special.logsumexp(log_term(grid)) + math.log(grid[1] - grid[0]))


def log_mass_at_the_centre(radius, weights):
    def term(log_w):
        w = math.exp(log_w)
        return w * math.exp(-w) * stats.chi2.cdf(radius**2 / w, weights)

    edge = 2 * math.log(radius)
    return math.log(integrate.quad(term, edge - 60, 6, points=[edge, edge - 3], limit=400)[0])


def laplace_renyi(shift, order):
    """Of Laplace noise of variance 1, as the accountant has it."""
    ratio = shift * math.sqrt(2)
    first = math.log(order / (2 * order - 1)) + (order - 1) * ratio
    second = math.log((order - 1) / (2 * order - 1)) - order * ratio
    return float(np.logaddexp(first, second)) / (order - 1)


def test_the_noise_in_one_dimension_is_laplace_noise():
    for x in (0.1, 1.0, 3.0):
        laplace = math.exp(-math.sqrt(2) * x) / math.sqrt(2)
        assert math.exp(density_of_noise(x, 1)) == pytest.approx(laplace, rel=1e-6)


@pytest.mark.parametrize("weights", [10, 100])
def test_multivariate_laplace_noise_leaks_more_than_one_dimension_of_it(weights):
    """A ball around the true gradient, against a gradient that is 1 (one clipping bound) away.

    In one dimension no event is more than exp(sqrt(2)) times as likely. The last radii lie within
    the released code's clamp, a hundredth of the noise in each coordinate.
    """
    shift, losses, divergences = 1.0, [], []
    for radius in (0.1, 0.01, 0.001):
        log_volume = (
            weights / 2 * math.log(math.pi)
            - special.gammaln(weights / 2 + 1)
            + weights * math.log(radius)
        )
        log_p = log_mass_at_the_centre(radius, weights)
        log_q = log_volume + density_of_noise(shift - radius, weights)  # at most
        losses.append(log_p - log_q)
        divergences.append(2 * log_p - log_q)  # Renyi of order 2 is at least this
        assert log_p > math.log(radius**2 / (2 * weights))  # nothing out of the way
    assert min(losses) > 10 * math.sqrt(2) * shift
    assert divergences == sorted(divergences)  # and without end: there is a pole
    assert divergences[0] > 10 * laplace_renyi(shift, 2.0)


# --- caps and lists: SparseGNN --------------------------------------------------------------------


def capped(edges, cap):
    """One counter a node for both ends, edges in the order given."""
    degrees: dict[int, int] = {}
    kept = []
    for u, v in edges:
        if degrees.get(u, 0) < cap and degrees.get(v, 0) < cap:
            degrees[u], degrees[v] = degrees.get(u, 0) + 1, degrees.get(v, 0) + 1
            kept.append((u, v))
    return set(kept)


@pytest.mark.parametrize("length", [5, 50])
def test_one_counter_for_both_ends_passes_a_change_on(length):
    """A path, cap 1: without its first node every other node has another neighbour."""
    path = list(itertools.pairwise(range(length)))
    with_it = capped(path, 1)
    without = capped([edge for edge in path if 0 not in edge], 1)
    changed = {node for edge in with_it ^ without for node in edge} - {0}
    assert len(changed) == length - 1  # cap + 1 = 2 are charged


@pytest.mark.parametrize("cap", [1, 5])
def test_a_substituted_node_touches_two_lists_of_receivers(cap):
    """Node 0 sends to some in one world and to others in its neighbour: 1 + K are counted."""
    nodes = 2 * cap + 1
    before, after = np.zeros((nodes, nodes)), np.zeros((nodes, nodes))
    before[0, 1 : cap + 1] = after[0, cap + 1 :] = 1
    changed = 1 + np.count_nonzero((before != after).any(0))
    assert changed == 1 + 2 * cap > 1 + cap


# --- DPAR -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 44.4])
def test_a_rate_times_epsilon_is_less_than_sampling_leaks(epsilon):
    """A node that is there and drawn says yes far more often than its absence does."""
    rate = 0.09
    present = rate * special.expit(epsilon) + (1 - rate) * special.expit(-epsilon)
    leaked = math.log(present / special.expit(-epsilon))
    assert leaked == pytest.approx(math.log1p(rate * math.expm1(epsilon)), rel=1e-9)
    assert leaked > 1.5 * rate * epsilon
