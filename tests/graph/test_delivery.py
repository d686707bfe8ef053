"""Messages that arrive by coins: what a term reads, what one node alters, and what that costs."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from graphveil._errors import UnprovenError
from graphveil.grads.examples import check_delivery
from graphveil.grads.settings import Sampling
from graphveil.graph import delivery
from graphveil.graph.delivery import DeliveredTerms, Delivery
from graphveil.privacy import accounting
from graphveil.privacy._mixture import BinomialGaussian
from graphveil.privacy.events import SampledGaussianDpEvent, repeated
from graphveil.rng import secret

NODES, CAP = 14, 3


def random_graph(seed=0, nodes=NODES, share=0.35):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(nodes, nodes, generator=generator) < share).nonzero().T


def terms_of(edges, nodes=NODES, cap=CAP, probability=0.5, receiver_cap=2, seed=4, fixed_seed=1):
    x = torch.arange(1.0, nodes + 1).unsqueeze(1)
    roots = torch.arange(0, nodes, 2)
    trained = torch.zeros(nodes, dtype=torch.bool).index_fill(0, roots, True)
    how = Delivery(sender_cap=cap, probability=probability, receiver_cap=receiver_cap, seed=seed)
    rng = secret(fixed_seed=fixed_seed)
    return DeliveredTerms(
        x, torch.zeros(nodes, dtype=torch.long), edges[:, trained[edges[1]]], roots, how, rng
    )


def read_by(terms, root):
    """Everything that the term of one root is made of, bit by bit."""
    place = int((terms.roots == root).nonzero())
    ((around, _),) = [tuple(batch) for batch in terms.batches(torch.tensor([place]))]
    rows = around.table[around.index]
    return tuple(part.numpy().tobytes() for part in (rows, around.weight, around.mask))


def withhold(edges, node):
    return edges[:, edges[0] != node]


@pytest.mark.parametrize("seed", range(4))
def test_a_message_that_is_not_delivered_leaves_its_term_as_it_is_without_it(seed):
    """Receivers choose among what was delivered: no place is kept for what was not."""
    check_undelivered(seed)


def check_undelivered(seed):
    edges = random_graph(seed)
    terms = terms_of(edges)
    coins = torch.from_numpy(secret(fixed_seed=seed).bernoulli(0.5, NODES * CAP))
    terms.deliver(coins)
    everywhere = {int(root): read_by(terms, root) for root in terms.roots}
    some_changed = False
    for node in range(NODES):
        without = terms_of(withhold(edges, node))
        without.deliver(coins)
        own = terms.kept[0] == node
        reached = set(terms.kept[1, own & coins[terms.slot]].tolist())
        changed = {root for root in everywhere if read_by(without, root) != everywhere[root]}
        assert changed - {node} <= reached
        assert len(reached) <= CAP
        some_changed = some_changed or bool(changed - {node})
    assert some_changed


def test_receivers_that_choose_before_the_coins_are_noticed(monkeypatch):
    """The law above fails for them: a place is refilled by who was not read before."""

    def deliver_late(self, roots, coins):
        kept = delivery.cap_receivers(self.kept, len(self.x), 2, seed=self.how.seed)
        slots = dict(zip(map(tuple, self.kept.T.tolist()), self.slot.tolist(), strict=True))
        arrived = [bool(coins[slots[pair]]) for pair in map(tuple, kept.T.tolist())]
        read = kept[:, torch.tensor(arrived)]
        return delivery.weigh_messages(read, len(self.x), "inverse-degree")

    monkeypatch.setattr(DeliveredTerms, "_messages_to", deliver_late)
    with pytest.raises(AssertionError):
        check_undelivered(0)


def test_every_slot_has_a_fresh_coin_of_the_stated_probability(monkeypatch):
    terms = terms_of(random_graph(), probability=0.3, fixed_seed=7)
    thrown = []
    monkeypatch.setattr(DeliveredTerms, "deliver", lambda self, coins: thrown.append(coins))
    for step in range(400):
        terms.begin(step)
    coins = torch.stack(thrown).numpy()
    assert coins.shape == (400, NODES * CAP)  # by public numbers, whatever the graph is
    by_slot, by_step = coins.sum(0), coins.sum(1)
    assert stats.binomtest(int(coins.sum()), coins.size, 0.3).pvalue > 1e-4
    for counts, draws in ((by_slot, 400), (by_step, NODES * CAP)):
        expected = draws * 0.3 * 0.7
        spread = counts.var() / expected
        assert 0.6 < spread < 1.4  # neither frozen over steps nor shared by slots
    correlation = np.corrcoef(coins.T[:20])
    assert np.abs(correlation - np.eye(20)).max() < 0.25


def test_slots_are_distinct_and_of_their_senders():
    terms = terms_of(random_graph())
    assert len(terms.slot.unique()) == terms.kept.shape[1]
    assert (terms.slot // terms.places == terms.kept[0]).all()


def test_places_are_no_more_than_roots():
    terms = terms_of(random_graph(), cap=10**6)
    assert terms.influence() == (1, len(terms))


@pytest.mark.parametrize("asked", [{"unit": "edge-directed"}, {"relation": "remove"}])
def test_other_units_and_relations_are_refused(asked):
    with pytest.raises(UnprovenError, match="deliver every message"):
        terms_of(random_graph()).influence(**asked)


def test_steps_are_charged_for_what_is_delivered():
    terms = terms_of(random_graph(), probability=0.5)
    check_delivery(terms, 0.5)
    with pytest.raises(UnprovenError, match=r"a delivery of 0\.5"):
        check_delivery(terms, 0.4)
    with pytest.raises(UnprovenError, match="a delivery of 1"):
        check_delivery([1, 2], 0.9)


# --- what it costs --------------------------------------------------------------------------------


def hockey_stick(upper, lower, noise, epsilon):
    """By a fine sum over the line, of two mixtures given as (weights, centres)."""
    x = np.linspace(-12 * noise - 10, 12 * noise + 10, 8_001)

    def density(weights, centres):
        total = np.zeros_like(x)
        for weight, centre in zip(weights, centres, strict=True):
            total += weight * np.exp(-((x - centre) ** 2) / (2 * noise**2))
        return total / (noise * math.sqrt(2 * math.pi))

    excess = density(*upper) - math.exp(epsilon) * density(*lower)
    return float(np.maximum(excess, 0).sum() * (x[1] - x[0]))


def world(rate, probability, altered, *, present, silent):
    """The exact law of a step's sum: every coin of every term written out.

    The own term is +1. An altered one is +1 where the unit's message is delivered, -1 where the
    unit is withheld and it would have been, and ``silent`` where it is not delivered.
    """
    outcomes = {}
    for drawn, delivered in itertools.product(
        itertools.product([0, 1], repeat=altered + 1), itertools.product([0, 1], repeat=altered)
    ):
        weight = math.prod(rate if coin else 1 - rate for coin in drawn)
        weight *= math.prod(probability if coin else 1 - probability for coin in delivered)
        centre = drawn[0] * float(present)
        for root, arrived in zip(drawn[1:], delivered, strict=True):
            # Withheld, a term has no such message, delivered or not.
            centre += root * ((1 if arrived else silent) if present else silent)
        outcomes[round(centre, 9)] = outcomes.get(round(centre, 9), 0) + weight
    return list(outcomes.values()), list(outcomes)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("delivery", [0.1, 0.5])
@pytest.mark.parametrize("altered", [1, 3])
@pytest.mark.parametrize("silent", [-1.0, 0.0])
def test_the_charged_pair_dominates_the_exact_law_of_all_coins(rate, delivery, altered, silent):
    noise = 1.5
    with_unit = world(rate, delivery, altered, present=True, silent=silent)
    without = world(rate, delivery, altered, present=False, silent=silent)
    event = Sampling(
        sample_rate=rate, noise_multiplier=noise, altered=altered, delivery=delivery
    ).event(100)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        charged = accounting.delta_of(event, epsilon)
        exact = max(
            hockey_stick(with_unit, without, noise, epsilon),
            hockey_stick(without, with_unit, noise, epsilon),
        )
        assert exact <= charged + 1e-9


@pytest.mark.parametrize("rate, altered_rate", [(0.3, 0.1), (0.6, 0.01), (0.05, 0.05)])
@pytest.mark.parametrize("removed, altered", [(1, 2), (2, 5), (0, 3)])
def test_the_pair_of_two_rates_against_its_definition(rate, altered_rate, removed, altered):
    noise = 1.2
    event = SampledGaussianDpEvent(
        rate=rate,
        noise_multiplier=noise,
        removed=removed,
        altered=altered,
        altered_rate=altered_rate,
    )
    of_removed = stats.binom(removed, rate).pmf(np.arange(removed + 1))
    of_altered = stats.binom(altered, altered_rate).pmf(np.arange(altered + 1))
    both = np.convolve(of_removed, of_altered)
    present, withheld = (both, np.arange(len(both))), (of_altered, -np.arange(altered + 1))
    for epsilon in (0.0, 0.5, 2.0):
        exact = max(
            hockey_stick(present, withheld, noise, epsilon),
            hockey_stick(withheld, present, noise, epsilon),
        )
        assert accounting.delta_of(event, epsilon) == pytest.approx(exact, rel=2e-3, abs=1e-7)


def test_a_lower_rate_costs_less_and_the_same_rate_the_same():
    def price(delivery, steps=50):
        sampling = Sampling(sample_rate=0.3, noise_multiplier=4.0, altered=2, delivery=delivery)
        return accounting.price(repeated(sampling.event(100), steps), 1e-5)

    prices = [price(delivery) for delivery in (0.01, 0.1, 0.5, 0.99, 1.0)]
    assert all(a.pld < b.pld and a.rdp < b.rdp for a, b in itertools.pairwise(prices))
    assert all(one.pld <= one.rdp for one in prices)
    alone = Sampling(sample_rate=0.3, noise_multiplier=4.0, altered=0).event(100)
    alone = accounting.price(repeated(alone, 50), 1e-5)
    assert price(1e-7).pld == pytest.approx(alone.pld, rel=1e-3)


def test_far_tails_of_two_rates_keep_their_digits():
    """Weights below 1e-308 are there in logarithms: divergences of high orders need them."""
    law = BinomialGaussian(1, 0.3, 1.0, (400, 1e-3))
    assert len(law.counts) == 402
    expected = math.log(0.3) + 400 * math.log(1e-3)
    assert law.log_weights[-1] == pytest.approx(expected, rel=1e-12)
    assert special.logsumexp(law.log_weights) == pytest.approx(0, abs=1e-12)


def test_fixed_batches_are_refused():
    with pytest.raises(UnprovenError, match="batches that are drawn by coins"):
        Sampling(sample_rate=0.3, noise_multiplier=1.0, altered=1, fixed_batch=3, delivery=0.5)
