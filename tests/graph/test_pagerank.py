"""Personalised PageRank rows: against dense solutions, local to the last bit, bad input."""

import itertools

import numpy as np
import pytest
import torch
from scipy import linalg, optimize, sparse

from graphveil._errors import InvalidInputError
from graphveil.graph import pagerank as module
from graphveil.graph.pagerank import pagerank

NODES = 40
SETTINGS = [(0.25, 1e-3), (0.25, 1e-4), (0.1, 3e-3), (0.6, 1e-2)]


def a_graph(seed, *, directed=False):
    """Two hubs, three components, isolated nodes, repeated edges and self-loops."""
    rng = torch.Generator().manual_seed(seed)
    one = torch.randint(0, 22, (2, 40), generator=rng)
    other = torch.randint(22, 34, (2, 14), generator=rng)
    hubs = torch.tensor([[0] * 14 + [22] * 7, [*range(6, 20), *range(25, 32)]])
    pair, loops = torch.tensor([[34], [35]]), torch.arange(30, 38).expand(2, 8)
    edges = torch.cat([one, other, hubs if seed % 2 else hubs.flip(0), pair, loops], 1)
    edges = torch.cat([edges, edges[:, :9]], 1)
    return edges if directed else torch.cat([edges, edges.flip(0)], 1)


def adjacency(edges, nodes=NODES):
    """Edges in both directions, once; a node without any has a loop."""
    dense = np.zeros((nodes, nodes))
    dense[edges[0], edges[1]] = dense[edges[1], edges[0]] = 1.0
    np.fill_diagonal(dense, 0.0)
    np.fill_diagonal(dense, dense.sum(1) == 0)
    return dense


def degrees(edges, nodes=NODES):
    return adjacency(edges, nodes).sum(1)


def solved(edges, seed, alpha, rho, nodes=NODES):
    """The l1-regularised problem in its own variables q = D^-1/2 p, by an active-set solver.

    min 1/2 q Q q - alpha s D^-1/2 q + rho alpha |D^1/2 q|_1, whose solution is not negative: with
    Q = L L^T it is the least-squares problem |L^T q - L^-1 b| over q >= 0.
    """
    dense = adjacency(edges, nodes)
    root = np.sqrt(dense.sum(1))
    scaled = dense / root[:, None] / root[None, :]
    quadratic = (1 + alpha) / 2 * np.eye(nodes) - (1 - alpha) / 2 * scaled
    linear = -rho * alpha * root
    linear[seed] += alpha / root[seed]
    lower = np.linalg.cholesky(quadratic)
    q, _ = optimize.nnls(lower.T, linalg.solve_triangular(lower, linear, lower=True))
    return root * q


def exact(edges, seeds, alpha, nodes=NODES):
    """Personalised PageRank of the lazy walk, by an inverse."""
    dense = adjacency(edges, nodes)
    lazy = (np.eye(nodes) + dense / dense.sum(1, keepdims=True)) / 2
    return alpha * np.linalg.inv(np.eye(nodes) - (1 - alpha) * lazy)[seeds]


def far(found, wanted, degree):
    return np.max(np.abs(found - wanted) / degree)


# --- the regularised problem ----------------------------------------------------------------------


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("alpha, rho", SETTINGS)
def test_rows_solve_the_regularised_problem(alpha, rho, directed):
    every = torch.arange(NODES)
    for seed in range(2):
        edges = a_graph(seed, directed=directed)
        degree = degrees(edges)
        assert degree.max() >= 14
        wanted = np.stack([solved(edges, s, alpha, rho) for s in range(NODES)])
        found = pagerank(edges, NODES, every, alpha=alpha, rho=rho, tolerance=1e-6).toarray()
        assert np.abs(found - wanted).max() < 1e-6 * rho * degree.max() + 1e-12
        assert np.abs(found - wanted).max() < 1e-6
        # The very same entries: those of the solution, and no others.
        assert ((found > 0) == (wanted > 1e-12)).all()
        assert wanted[wanted > 0].min() > 1e-12


@pytest.mark.parametrize("tolerance", [1.0, 0.1, 1e-4])
@pytest.mark.parametrize("alpha, rho", SETTINGS)
def test_the_error_is_within_the_tolerance(alpha, rho, tolerance):
    worst, edges = 0.0, a_graph(1)
    degree = degrees(edges)
    for s in range(0, NODES, 2):  # alone: no other row makes it take more steps
        wanted, seeds = solved(edges, s, alpha, rho), torch.tensor([s])
        found = pagerank(edges, NODES, seeds, alpha=alpha, rho=rho, tolerance=tolerance)
        worst = max(worst, far(found.toarray()[0], wanted, degree))
        assert found.indices.tolist() == sorted(found.indices.tolist())
        assert set(found.indices) <= set(np.flatnonzero(wanted))
    assert 0 < worst <= tolerance * rho + 1e-15


@pytest.mark.parametrize("alpha, rho", SETTINGS)
def test_the_conditions_of_optimality_hold(alpha, rho):
    """Over d the gradient is -rho alpha where a row has entries, in [-rho alpha, 0] elsewhere."""
    edges = a_graph(5)
    dense = adjacency(edges)
    degree = dense.sum(1)
    found = pagerank(
        edges, NODES, torch.arange(NODES), alpha=alpha, rho=rho, tolerance=1e-8
    ).toarray()
    lazy = (found + found / degree @ dense) / 2
    gradient = (found - (1 - alpha) * lazy - alpha * np.eye(NODES)) / degree
    slack = 3e-8 * rho
    assert np.abs(gradient[found > 0] + rho * alpha).max() < slack
    assert gradient[found == 0].min() > -rho * alpha - slack
    assert gradient[found == 0].max() < slack
    assert (found == 0).any()
    assert (found > 0).sum() > NODES


def test_a_seed_whose_degree_is_too_large_has_no_row():
    star = torch.stack([torch.zeros(30, dtype=torch.long), torch.arange(1, 31)])
    assert pagerank(star, 31, torch.tensor([0]), rho=1 / 29).nnz == 0
    assert pagerank(star, 31, torch.tensor([0]), rho=1 / 31).nnz > 0
    both = pagerank(star, 31, torch.tensor([0, 1]), rho=1 / 29).toarray()
    assert (both[0] == 0).all()
    assert both[1, 1] == pytest.approx(solved(star, 1, 0.25, 1 / 29, 31)[1], abs=1e-6)


# --- exact PageRank -------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.6])
def test_rows_tend_to_exact_pagerank(alpha):
    edges = a_graph(1)
    wanted = exact(edges, np.arange(NODES), alpha)
    assert wanted.sum(1) == pytest.approx(np.ones(NODES))
    apart = []
    for rho in (1e-2, 1e-4, 1e-8):
        found = pagerank(edges, NODES, torch.arange(NODES), alpha=alpha, rho=rho).toarray()
        assert (found <= wanted + 1e-12).all()
        apart.append(np.abs(found - wanted).max())
        assert far(found, wanted, degrees(edges)) <= rho * (1 + 1e-4)
    assert apart[0] > apart[1] > apart[2]
    assert apart[2] < 1e-6


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("alpha, rho", SETTINGS)
def test_push_is_within_rho_of_the_exact_row_and_never_above_it(alpha, rho, directed):
    worst = 0.0
    for seed in range(4):
        edges = a_graph(seed, directed=directed)
        wanted = exact(edges, np.arange(NODES), alpha)
        rows = pagerank(edges, NODES, torch.arange(NODES), how="push", alpha=alpha, rho=rho)
        found = rows.toarray()
        assert (rows.data > 0).all()
        assert (found <= wanted + 1e-14).all()
        worst = max(worst, far(found, wanted, degrees(edges)))
        # What is missing is what the residual would still become: no more than rho d anywhere.
        dense = adjacency(edges)
        teleport = 2 * alpha / (1 + alpha)
        steps = np.eye(NODES) - (1 - teleport) * dense / dense.sum(1, keepdims=True)
        residual = (wanted - found) @ steps / teleport
        assert residual.min() > -1e-12
        assert (residual <= rho * dense.sum(1) + 1e-12).all()
    assert 0.1 * rho < worst <= rho


# --- local ----------------------------------------------------------------------------------------


def ring_of_groups(groups, size=8):
    """Dense groups in a ring, one edge from each to the next."""
    inside = torch.tensor(list(itertools.combinations(range(size), 2))).t()
    parts = [inside + size * g for g in range(groups)]
    ends = size * torch.arange(groups)
    bridges = torch.stack([ends, (ends + size + 1) % (groups * size)])
    return torch.cat([*parts, bridges], 1)


@pytest.mark.parametrize("how", ["ista", "push"])
def test_a_row_is_as_small_on_a_large_graph(how):
    sizes = []
    for groups in (100, 3000):
        edges, nodes = ring_of_groups(groups), 8 * groups
        rows = pagerank(edges, nodes, torch.tensor([40, 83]), how=how, rho=1e-3)
        degree = np.bincount(edges.flatten(), minlength=nodes)
        for row in range(2):
            met = rows.indices[rows.indptr[row] : rows.indptr[row + 1]]
            assert degree[met].sum() <= 1 / 1e-3
        sizes.append((rows.indices.tolist(), rows.data.tolist()))
    assert sizes[0] == sizes[1]  # to the last bit
    assert len(sizes[0][0]) < 200


@pytest.mark.parametrize("rho", [1e-2, 1e-3, 1e-4])
def test_the_volume_of_a_row_is_at_most_one_over_rho(rho):
    largest = 0.0
    for seed in range(4):
        edges = a_graph(seed)
        rows = pagerank(edges, NODES, torch.arange(NODES), alpha=0.1, rho=rho).toarray()
        largest = max(largest, ((rows > 0) @ degrees(edges)).max())
    assert 0 < largest <= 1 / rho


@pytest.mark.parametrize("how", ["ista", "push"])
def test_edges_far_away_change_not_a_single_bit(how):
    edges, seeds = ring_of_groups(60), torch.tensor([0, 5, 17])
    before = pagerank(edges, 500, seeds, how=how, rho=1e-3)
    changes = {
        "fewer": edges[:, ((edges < 200) | (edges > 300)).any(0)],
        "more": torch.cat([edges, torch.randint(200, 300, (2, 400))], 1),
        "another component": torch.cat([edges, torch.randint(480, 500, (2, 40))], 1),
    }
    for why, other in changes.items():
        after = pagerank(other, 500, seeds, how=how, rho=1e-3)
        for part in ("data", "indices", "indptr"):
            assert np.array_equal(getattr(before, part), getattr(after, part)), why
    near = torch.cat([edges, torch.tensor([[0], [30]])], 1)
    assert not np.array_equal(pagerank(near, 500, seeds, how=how, rho=1e-3).data, before.data)


# --- batches and input ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ista", "push"])
def test_seeds_one_by_one_are_seeds_together(how, monkeypatch):
    edges = a_graph(2)
    degree = degrees(edges)
    seeds = torch.tensor([0, 5, 39, 22, 5, 34, 0])
    alone = sparse.vstack([pagerank(edges, NODES, s.view(1), how=how, rho=1e-3) for s in seeds])
    alone = alone.toarray()
    assert np.array_equal(alone[1], alone[4])
    for at_once in (1, 2, 3, 100):
        monkeypatch.setattr(module, "_SEEDS_AT_ONCE", at_once)
        found = pagerank(edges, NODES, seeds, how=how, rho=1e-3)
        assert found.shape == (7, NODES)
        assert far(found.toarray(), alone, degree) <= (0 if how == "push" else 1e-4 * 1e-3)
        if at_once == 1:
            assert np.array_equal(found.toarray(), alone)


@pytest.mark.parametrize("how", ["ista", "push"])
def test_loops_repeats_and_directions_do_not_matter(how):
    edges = a_graph(3).unique(dim=1)
    edges = edges[:, edges[0] < edges[1]]
    plain = pagerank(edges, NODES, torch.arange(NODES), how=how).toarray()
    loops = torch.arange(NODES).expand(2, NODES)
    for other in (edges.flip(0), edges.repeat(1, 3), torch.cat([edges, edges.flip(0), loops], 1)):
        found = pagerank(other, NODES, torch.arange(NODES), how=how).toarray()
        assert np.allclose(found, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("nodes", [1, 7])
def test_without_edges_a_walk_stays_where_it_is(nodes):
    none = torch.empty(2, 0, dtype=torch.long)
    for edges in (none, torch.zeros(2, 3, dtype=torch.long)):
        rows = pagerank(edges, nodes, torch.arange(nodes), rho=1e-3)
        assert (rows.toarray() > 0).tolist() == np.eye(nodes, dtype=bool).tolist()
        assert rows.data == pytest.approx(np.full(nodes, 1 - 1e-3), abs=1e-6)
        rows = pagerank(edges, nodes, torch.arange(nodes), how="push", rho=1e-3)
        assert (rows.toarray() > 0).tolist() == np.eye(nodes, dtype=bool).tolist()
        assert (rows.data >= 1 - 1e-3).all()


@pytest.mark.parametrize("how", ["ista", "push"])
def test_no_seeds_give_no_rows(how):
    rows = pagerank(a_graph(0), NODES, torch.empty(0, dtype=torch.long), how=how)
    assert rows.shape == (0, NODES)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"seeds": torch.tensor([0, NODES])}, "'seeds'"),
        ({"seeds": torch.tensor([-1])}, "'seeds'"),
        ({"seeds": torch.tensor([[1]])}, "'seeds'"),
        ({"how": "power"}, "'how'"),
        ({"alpha": 0.0}, "'alpha'"),
        ({"alpha": 1.0}, "'alpha'"),
        ({"rho": 0.0}, "'rho'"),
        ({"rho": 1.0}, "'rho'"),
        ({"rho": float("nan")}, "'rho'"),
        ({"tolerance": 0.0}, "'tolerance'"),
        ({"tolerance": 1.5}, "'tolerance'"),
    ],
)
def test_bad_input_is_refused_in_one_line(changed, said):
    settings = {"seeds": torch.tensor([0])} | changed
    with pytest.raises(InvalidInputError, match=said) as refusal:
        pagerank(a_graph(0), NODES, settings.pop("seeds"), **settings)
    assert "\n" not in str(refusal.value)
    assert "Got" in str(refusal.value)


@pytest.mark.parametrize("settings", [{"rho": 1e-13}, {"tolerance": 1e-14}])
def test_steps_as_short_as_rounding_end(settings):
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]])
    assert pagerank(edges, 6, torch.arange(6), **settings).shape == (6, 6)


@pytest.mark.parametrize(
    "seeds, edges, said",
    [
        (torch.tensor([0.5]), [[0], [1]], "long tensor"),
        (torch.tensor([True, False, True]), [[0], [1]], "mask.nonzero"),
        ([0], [[0], [1]], "list"),
        (torch.tensor([0]), [[0], [9]], "Got 9"),
        (torch.tensor([0]), [[0, 1], [1, 2], [0, 2]], "two rows"),
    ],
)
def test_ids_that_are_none_are_refused_in_one_line(seeds, edges, said):
    with pytest.raises(InvalidInputError, match=said):
        pagerank(torch.tensor(edges), 3, seeds)
