"""Clipped sums over pairs in closed form, against plain autograd; and company that is not known."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from graphveil._errors import InvalidInputError
from graphveil.grads import pair_sums
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Automatic, Flat, PerLayer
from graphveil.grads.pair_sums import PairSum
from graphveil.grads.products import RowByRow
from graphveil.graph.link_terms import PairBatch, person_terms
from graphveil.graph.links import lists_of
from graphveil.nn.link_descriptions import LinkNetwork
from graphveil.nn.link_scorers import link_losses


def scorer(kind="dot", rows=7, content=5, seed=0):
    network = LinkNetwork(
        source_columns=rows - content, target_columns=content, content=content, num_targets=11,
        reads_list=True, popularity=True, prior=2.0, scorer=kind, hidden_channels=3,
    ).build()  # fmt: skip
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
        network.popularity.copy_(torch.randn(11, generator=rng))
    return network


def batch(sizes=(1, 3, 2, 5, 1), *, shared=True, rows=7, content=5, seed=1, negatives=4):
    rng = torch.Generator().manual_seed(seed)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    pairs = len(owner)
    shape = (negatives,) if shared else (pairs, negatives)
    return PairBatch(
        rows=torch.randn(pairs, rows, generator=rng, dtype=torch.float64),
        owner=owner,
        count=len(sizes),
        positive=torch.randint(11, (pairs,), generator=rng),
        negative=torch.randint(11, shape, generator=rng),
        table=torch.randn(11, content + 1, generator=rng, dtype=torch.float64),
    )


def by_autograd(network, pairs, clipping):
    """The clipped sum, one term at a time; and the losses."""
    network = network.double()
    total, losses = None, []
    for term in range(pairs.count):
        mine = pairs.owner == term
        negative = pairs.negative if pairs.negative.dim() == 1 else pairs.negative[mine]
        scores = []
        for place, (row, target) in enumerate(
            zip(pairs.rows[mine], pairs.positive[mine], strict=True)
        ):
            others = negative if negative.dim() == 1 else negative[place]
            z = network.linear(row)
            targets = pairs.table[torch.cat([target.view(1), others])]
            score = targets @ z
            if network.head is not None:
                inputs = torch.cat([z * targets, targets], 1)
                score = score + network.head(inputs).squeeze(1)
            scores.append(F.cross_entropy(score.unsqueeze(0), torch.zeros(1, dtype=torch.long)))
        loss = torch.stack(scores).mean()
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        names = [name for name, _ in network.named_parameters()]
        norms = {}
        for name, value in zip(names, gradients, strict=True):
            block = name.rpartition(".")[0]
            norms[block] = norms.get(block, 0) + value.square().sum().view(1)
        factors = clipping.factors(norms)
        clipped = {
            n: v * factors[n.rpartition(".")[0]] for n, v in zip(names, gradients, strict=True)
        }
        total = clipped if total is None else {n: total[n] + clipped[n] for n in names}
        losses.append(float(loss.detach()))
    return total, losses


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "clipping", [Flat(0.5), Flat(100.0), Automatic(0.7), PerLayer(0.3)], ids=str
)
def test_the_closed_form_is_what_autograd_gives(shared, clipping):
    pairs = batch(shared=shared)
    summed = PairSum(scorer().double(), None, clipping)
    fast = summed([pairs])
    slow, losses = by_autograd(scorer(), pairs, clipping)
    assert fast.keys() == slow.keys() == {"linear.weight", "linear.bias"}
    for name, value in fast.items():
        # Norms are read a little larger, to pay for rounding.
        torch.testing.assert_close(value, slow[name], rtol=2e-3, atol=1e-9)
    assert summed.seen == 5
    assert summed.loss == pytest.approx(sum(losses))


@pytest.mark.parametrize("kind", ["dot", "mlp"])
@pytest.mark.parametrize("shared", [True, False])
def test_any_scorer_has_the_sum_that_autograd_gives(kind, shared):
    pairs = batch(shared=shared)
    general = ClippedSum(scorer(kind).double(), link_losses, Flat(0.5))([pairs])
    slow, _ = by_autograd(scorer(kind), pairs, Flat(0.5))
    for name, value in general.items():
        torch.testing.assert_close(value, slow[name], rtol=2e-3, atol=1e-9)


def test_batches_add_up_and_none_is_nothing():
    summed = PairSum(scorer(), None, Flat(0.5))
    one, other = batch(seed=3), batch(seed=4, sizes=(2, 2))
    together = summed([one, other])
    apart = [summed([one]), summed([other])]
    for name, value in together.items():
        torch.testing.assert_close(value, apart[0][name] + apart[1][name])
    assert all(float(value.abs().sum()) == 0 for value in summed([]).values())


def test_no_term_adds_more_than_the_bound():
    for scale in (1e-3, 1.0, 1e6):
        pairs = batch(sizes=(4,))
        pairs.rows.mul_(scale)
        total = PairSum(scorer(), None, Flat(0.25))([pairs])
        assert sum(float(value.square().sum()) for value in total.values()) <= 0.25**2


def test_pairs_that_cancel_are_not_read_too_short():
    """Two pairs whose gradients are each other's negative, but for the last digits."""
    pairs = batch(sizes=(2,), negatives=1)
    pairs.rows[1] = -pairs.rows[0]
    pairs.positive[1], pairs.negative[0] = pairs.positive[0], (pairs.positive[0] + 1) % 11
    pairs.rows.mul_(1e6)
    network = scorer()
    with torch.no_grad():
        network.linear.weight.zero_()
        network.linear.bias.zero_()
    total = PairSum(network, None, Flat(0.25))([pairs])
    assert sum(float(value.square().sum()) for value in total.values()) <= 0.25**2


def terms(seed=0, people=40, items=11):
    rng = torch.Generator().manual_seed(seed)
    pairs = torch.randint(people * items, (300,), generator=rng).unique()
    lists = lists_of((pairs // items).numpy(), (pairs % items).numpy(), people, items)
    table = torch.randn(items, 6, generator=rng, dtype=torch.float64)
    x = torch.randn(people, 2, generator=rng)
    train = torch.ones(people, dtype=torch.bool)
    return person_terms(x, lists, table, 5, train, keep=6, negatives=16, seed=seed)


def added(examples, drawn, monkeypatch):
    """Of every pair that is drawn: its gradient and what was read, to the last bit."""
    seen = {}
    clipped = PairSum(scorer(), None, Flat(0.5))
    plain, rule = pair_sums.pair_gradients, pair_sums.LinearRule.squared_norms

    def note(pairs, z):
        gradients, losses = plain(pairs, z)
        for term in range(pairs.count):
            mine = pairs.owner == term
            key = pairs.rows[mine].numpy().tobytes()
            seen[key] = gradients[mine].numpy().tobytes(), losses[mine].numpy().tobytes()
        return gradients, losses

    def note_norms(self):
        norms = rule(self)
        seen.setdefault("norms", []).extend(norms.tolist())
        return norms

    with monkeypatch.context() as patch:
        patch.setattr(pair_sums, "pair_gradients", note)
        patch.setattr(pair_sums.LinearRule, "squared_norms", note_norms)
        clipped(examples.batches(drawn))
    return seen


def test_a_term_does_not_know_its_company(monkeypatch):
    examples = terms()
    whole = added(examples, torch.arange(40), monkeypatch)
    for part in (torch.arange(1), torch.arange(5, 8), torch.arange(0, 40, 3), torch.arange(39)):
        some = added(examples, part, monkeypatch)
        assert set(some.pop("norms")) <= set(whole["norms"])
        assert some.items() <= whole.items()


def test_a_term_of_a_perceptron_does_not_know_its_company(monkeypatch):
    examples, network = terms(), scorer("mlp")

    def seen(drawn):
        """Of every term: its loss, and the gradients at what comes out of every layer."""
        result = {}
        plain = ClippedSum._losses_and_calls

        def note(self, pairs):
            losses, calls = plain(self, pairs)
            for term in range(pairs.count):
                key = pairs.rows[pairs.owner == term].numpy().tobytes()
                rows = [call.grad[call.rows.owner == term] for of in calls.values() for call in of]
                result[key] = float(losses[term]), *(part.numpy().tobytes() for part in rows)
            return losses, calls

        with monkeypatch.context() as patch:
            patch.setattr(ClippedSum, "_losses_and_calls", note)
            ClippedSum(network, link_losses, Flat(0.5))(examples.batches(drawn))
        return result

    whole = seen(torch.arange(40))
    assert len(whole) == 40
    for part in (torch.arange(1), torch.arange(5, 8), torch.arange(0, 40, 3)):
        assert seen(part).items() <= whole.items()


def test_what_is_not_one_linear_layer_is_refused():
    with pytest.raises(InvalidInputError, match="one linear layer"):
        PairSum(scorer("mlp"), None, Flat(1.0))


def test_a_pair_does_not_know_how_many_others_there_are():
    """Products are laid out alike for sixteen pairs and for fifteen, with 64 negatives, too."""
    network = scorer(rows=17, content=15)  # so that nothing is filled up to sixteen columns
    moved = 0
    for seed in range(60):
        whole = batch([1] * 48, rows=17, content=15, negatives=64, seed=seed)
        weight, bias = network.linear.weight.double(), network.linear.bias.double()
        with RowByRow():
            there, _ = pair_sums.pair_gradients(whole, F.linear(whole.rows, weight, bias))
            kept = {name: getattr(whole, name)[:47] for name in ("rows", "owner", "positive")}
            fewer = replace(whole, count=47, **kept)
            here, _ = pair_sums.pair_gradients(fewer, F.linear(fewer.rows, weight, bias))
        moved += int((there[:47] != here).any())
    assert moved == 0
