"""How many loss terms one unit touches, counted on small links; and what a mistake does to that."""

import itertools

import numpy as np
import pytest
import torch
from link_cases import (
    bipartite,
    contributions,
    count_changes,
    delete,
    moved,
    of_people,
    replace,
    terms_of_edges,
    terms_of_people,
    terms_of_persons,
    withhold,
)

from graphveil.graph import link_terms
from graphveil.graph.link_influence import people_influence
from graphveil.graph.link_terms import DrawnNegatives, OwnRow, count_targets
from graphveil.graph.links import own_lists

SEEDS, STEPS = range(4), (0, 1)


def worst(data, neighbours, make, *, by_pair=False):
    """The most terms deleted and inserted, and the farthest move, over neighbours and steps."""
    deletions = insertions = 0
    far = 0.0
    for step in STEPS:
        present = contributions(make(data), step, by_pair=by_pair)
        for other in neighbours:
            withheld = contributions(make(other), step, by_pair=by_pair)
            deleted, inserted = count_changes(present, withheld)
            deletions, insertions = max(deletions, deleted), max(insertions, inserted)
            far = max(far, moved(present, withheld))
    return deletions, insertions, far


def within(data, neighbours, make, charged=None, **how):
    """Whether nothing moves by more than is charged for."""
    removed, altered = make(data).influence() if charged is None else charged
    deleted, inserted, far = worst(data, neighbours, make, **how)
    fits = deleted <= removed + altered and inserted <= altered
    return fits and far <= (removed + 2 * altered) * (1 + 1e-9)


def everybody_withheld(data):
    return [withhold(data, person) for person in range(len(data.x))]


def one_list_made(data):
    """As ``data``, but that the person 0 was withheld and now has any one list."""
    width = len(data.target_x) if "target_x" in data else len(data.x)
    others = [t for t in range(width) if "target_x" in data or t != 0]
    subsets = itertools.chain.from_iterable(
        itertools.combinations(others, size) for size in (1, 2, len(others))
    )
    row = torch.full_like(data.x[0], 3.0)
    return [replace(data, 0, row, list(some)) for some in itertools.islice(subsets, 0, None, 3)]


# --- a person and public targets: (1, 0) ----------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_person_with_any_list_removes_its_own_term_and_alters_none(seed):
    data = bipartite(seed)
    assert terms_of_persons(data).influence() == (1, 0)
    assert within(data, everybody_withheld(data), terms_of_persons)


def test_a_list_that_appears_inserts_one_term_whatever_is_in_it():
    data = withhold(bipartite(1), 0)
    for other in one_list_made(data):
        deleted, inserted, far = worst(data, [other], terms_of_persons)
        assert (deleted, inserted) == (0, 1)
        assert far <= 1 + 1e-9


def test_another_row_and_list_alter_one_term_which_is_one_removed_and_one_added():
    data = bipartite(1)
    for other in one_list_made(data):
        deleted, inserted, _ = worst(data, [other], terms_of_persons)
        assert deleted <= 1
        assert inserted <= 1


def test_what_a_pair_reads_does_not_know_its_target():
    data = bipartite(2)
    terms = terms_of_persons(data, keep=5)
    (batch,) = terms.batches(torch.arange(len(terms)))
    lists = own_lists(data)
    for row, owner, target in zip(batch.rows, batch.owner, batch.positive, strict=True):
        source = terms.places[[len(list(t)) > 0 for t in _sizes(terms)]][owner]
        others = [
            t for t in lists.others[slice(*lists.offsets[source : source + 2])] if t != target
        ]
        mean = data.target_x[others].double().mean(0) if others else torch.zeros(2)
        torch.testing.assert_close(row[3:], mean.double())


def _sizes(terms):
    return [range(a, b) for a, b in itertools.pairwise(terms.offsets)]


# --- people at both ends: (0, K + K_in + K_neg) ---------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("caps", [(1, 1, 1), (2, 1, 1), (1, 3, 2), (3, 2, 1)])
def test_a_person_among_people_moves_no_more_terms_than_the_caps_say(seed, directed, caps):
    data = of_people(seed, directed=directed)

    def make(data):
        return terms_of_people(data, *caps)

    cap, cap_in, negatives = caps
    assert make(data).influence() == (0, cap + cap_in + cap * negatives)
    assert within(data, everybody_withheld(data), make)


def test_a_list_that_appears_among_people_moves_no_more_than_the_caps_say():
    data = withhold(of_people(3, people=6), 0)
    assert within(data, one_list_made(data), terms_of_people)


def test_some_links_come_near_the_bound():
    """The count is not idle: deletions and insertions of one and of the other kind happen."""
    deleted, inserted = 0, 0
    for seed in SEEDS:
        data = of_people(seed, people=10, links=40)
        some = worst(data, everybody_withheld(data), terms_of_people)
        deleted, inserted = max(deleted, some[0]), max(inserted, some[1])
    _, altered = people_influence(2, 2, 1)
    assert deleted >= altered - 2
    assert inserted >= 3


@pytest.mark.parametrize("step", range(4))
def test_every_id_is_a_negative_in_as_many_terms_as_every_other(step):
    data = of_people(0)
    data.train_mask[:] = True
    terms = terms_of_people(data, cap=3, cap_in=9, negatives=2)
    people, slots = np.arange(8), np.arange(3)
    drawn = terms.negatives.draw(step, 0, np.tile(people, 3), np.repeat(slots, 8))
    assert drawn.shape == (24, 2)
    assert torch.bincount(drawn.flatten(), minlength=8).tolist() == [6] * 8


def test_negatives_change_from_step_to_step():
    for terms in (terms_of_people(of_people(0, people=30)), terms_of_persons(bipartite(0))):
        sources, slots = np.arange(6), np.zeros(6, dtype=np.int64)
        one, other = (terms.negatives.draw(step, 0, sources, slots) for step in (0, 1))
        again = terms.negatives.draw(0, 0, sources, slots)
        assert not torch.equal(one, other)
        assert torch.equal(one, again)


# --- edges: (1, 0) --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["bipartite", "directed", "undirected"])
def test_an_edge_removes_its_own_term_and_alters_none(seed, kind):
    data = bipartite(seed) if kind == "bipartite" else of_people(seed, directed=kind == "directed")
    assert terms_of_edges(data).influence() == (1, 0)
    deleted = [delete(data, link) for link in range(data.links.shape[1])]
    assert within(data, deleted, terms_of_edges, by_pair=True)


def test_the_number_of_edges_divides_nothing():
    data = of_people(0)
    assert terms_of_edges(data).divisor == terms_of_edges(delete(data, 0)).divisor == 9.0


# --- popularity -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_person_moves_balanced_counts_by_one_at_most(seed):
    for data in (bipartite(seed), of_people(seed), of_people(seed, directed=False)):
        width = len(data.target_x) if "target_x" in data else len(data.x)
        before = count_targets(own_lists(data), width, balanced=True)
        for other in everybody_withheld(data):
            after = count_targets(own_lists(other), width, balanced=True)
            assert float((before - after).norm()) <= 1.0
    assert float((before - after).norm()) > 0.9  # the longest list uses it all


@pytest.mark.parametrize("directed", [True, False])
def test_an_edge_moves_one_count_or_two(directed):
    data = of_people(0, directed=directed)
    before = count_targets(own_lists(data), 8, balanced=False)
    for link in range(data.links.shape[1]):
        after = count_targets(own_lists(delete(data, link)), 8, balanced=False)
        assert float((before - after).norm()) == pytest.approx(1.0 if directed else 2**0.5)


# --- mistakes, which the same count notices -------------------------------------------------------


class Filtered(DrawnNegatives):
    """Negatives that are compared with links, and drawn again where they are some."""

    def __init__(self, inner, linked):
        super().__init__(count=inner.count, targets=inner.targets, seed=inner.seed)
        object.__setattr__(self, "linked", linked)

    def draw(self, step, block, sources, slots):
        drawn = super().draw(step, block, sources, slots)
        rows = [
            [next((t + n) % self.targets for n in range(self.targets)
                  if (s, (t + n) % self.targets) not in self.linked) for t in drawn.tolist()]
            for s in sources.tolist()
        ]  # fmt: skip
        return torch.tensor(rows)


def test_negatives_that_are_filtered_by_links_are_noticed():
    def make(data):
        terms = terms_of_edges(data)
        terms.negatives = Filtered(terms.negatives, set(zip(*data.links.tolist(), strict=True)))
        return terms

    data = of_people(0, people=6)
    deleted = [delete(data, link) for link in range(data.links.shape[1])]
    assert not within(data, deleted, make, by_pair=True)


def test_people_who_are_drawn_freely_as_negatives_are_noticed():
    def make(data):
        terms = terms_of_people(data)
        terms.negatives = DrawnNegatives(count=1, targets=len(data.x), seed=0)
        return terms

    assert any(not within(data, everybody_withheld(data), make) for data in map(of_people, SEEDS))


def test_a_cap_on_those_who_name_one_that_is_left_out_is_noticed():
    def make(data):
        return terms_of_people(data, cap=2, cap_in=len(data.x))

    charged = people_influence(2, 2, 1)
    neighbours = [of_people(seed, people=14) for seed in SEEDS]
    assert any(not within(d, everybody_withheld(d), make, charged) for d in neighbours)


def test_a_public_type_that_is_made_from_people_is_noticed():
    def make(data):
        lists = own_lists(data)
        sums = torch.zeros(len(data.target_x), 3)
        owners = torch.from_numpy(np.repeat(np.arange(len(data.x)), np.diff(lists.offsets)))
        sums.index_add_(0, torch.from_numpy(np.asarray(lists.others)), data.x[owners])
        data.target_x = sums[:, :2]
        return terms_of_persons(data)

    data = bipartite(0)
    copies = [withhold(data, person) for person in range(len(data.x))]
    assert not within(data, copies, make)


def test_a_row_that_reads_the_lists_of_others_is_noticed():
    """Both ends are people, and a source is read by the mean row of those that it names."""

    def make(data):
        terms = terms_of_people(data)
        lists = own_lists(data)
        terms.reads = link_terms.OwnRowAndList(data.x, lists, data.x.double())
        return terms

    data = of_people(2, people=10)
    assert not within(data, everybody_withheld(data), make)
    assert isinstance(terms_of_people(data).reads, OwnRow)
