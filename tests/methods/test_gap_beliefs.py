"""GAP with beliefs: what a node reads of its own list, who is weighed how, what rules choose."""

import pytest
import torch
from methods_cases import changed, graph

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.aggregation import Sent, bounded_rows, incoming
from graphveil.methods import GAP, Facts, hop_rules, hop_training
from graphveil.rng import secret

DATA = graph()
FACTS = Facts.of(DATA)


def made(**settings):
    return GAP(**{"epsilon": 8.0, "steps": 3, **settings})


def sent_by(edges, nodes, *, sender_cap=1, cap="soft", seed=0):
    """Random rows along given messages, with random weights of the receivers."""
    generator = torch.Generator().manual_seed(seed)
    rows = bounded_rows(torch.randn(nodes, 3, generator=generator))
    receivers = torch.rand(nodes, generator=generator, dtype=torch.float64) * 0.9 + 0.1
    messages = incoming(edges, nodes, seed=0, sender_cap=sender_cap, cap=cap, receivers=receivers)
    return Sent(messages, rows, messages.weights, receivers=receivers)


@pytest.mark.parametrize("sender_cap", [1, 2, 5])
@pytest.mark.parametrize("cap", ["soft", "hard"])
def test_the_squared_weights_of_a_sender_add_up_to_its_cap_at_most(cap, sender_cap):
    sent = sent_by(DATA.edge_index, len(DATA.x), sender_cap=sender_cap, cap=cap)
    spent = torch.zeros(len(DATA.x), dtype=torch.float64)
    spent.index_add_(0, sent.messages.senders, sent.weight.double().square())
    assert spent.max() <= sender_cap
    assert sent.weight.max() <= 1
    if cap == "soft" and sender_cap == 1:
        sends = torch.bincount(sent.messages.senders, minlength=len(spent)) > 0
        assert spent[sends].min() > 0.99  # nothing is left over


def test_a_soft_cap_shares_out_by_the_receivers_weights():
    edges = torch.tensor([[0, 0, 0], [1, 2, 3]])
    weights = torch.tensor([1.0, 1.0, 0.5, 0.25], dtype=torch.float64)
    messages = incoming(edges, 4, seed=0, sender_cap=1, cap="soft", receivers=weights)
    expected = weights[1:] / weights[1:].norm()
    assert torch.allclose(messages.weights, expected, rtol=1e-6)


@pytest.mark.parametrize("cap", ["soft", "hard"])
def test_list_sums_are_what_the_formula_says(cap):
    sent = sent_by(DATA.edge_index, len(DATA.x), sender_cap=2, cap=cap)
    sums = torch.randn(len(DATA.x), 3, dtype=torch.float64)
    found = sent.list_sums(sums)
    ends = list(zip(sent.messages.senders.tolist(), sent.messages.receivers.tolist(), strict=True))
    for node in range(len(DATA.x)):
        heard, length = torch.zeros(3, dtype=torch.float64), 0.0
        for (sender, receiver), weight in zip(ends, sent.weight, strict=True):
            if sender == node:
                share = sent.receivers[receiver]
                heard += share * (sums[receiver] - weight * sent.rows[node].double())
                length += float(share) ** 2
        expected = heard / max(length, 1e-12) ** 0.5
        assert torch.allclose(found[node], expected, atol=1e-9)


def test_a_list_says_nothing_of_what_its_own_node_sent():
    """Else a training node would read its own label, and a tested one could not."""
    sent = sent_by(DATA.edge_index, len(DATA.x))
    for node in (0, 7, 20):
        rows = sent.rows.clone()
        rows[node] = -rows[node]
        other = Sent(sent.messages, rows, sent.weight, receivers=sent.receivers)
        before, after = (one.list_sums(one.sums())[node] for one in (sent, other))
        assert not torch.equal(sent.sums(), other.sums())
        assert torch.allclose(before, after, atol=1e-9)


def test_list_sums_read_the_own_list_and_released_sums_and_nothing_else():
    """Other nodes' lists and rows leave what a list says as it is, to the last bit."""
    sums = torch.randn(len(DATA.x), 3)
    before = sent_by(DATA.edge_index, len(DATA.x)).list_sums(sums)
    for node in (0, 3, 11):
        kept = DATA.edge_index[:, DATA.edge_index[0] != node]
        after = sent_by(kept, len(DATA.x)).list_sums(sums)
        others = torch.arange(len(DATA.x)) != node
        assert torch.equal(before[others], after[others])
        assert (after[node] == 0).all()
        assert (before[node] != 0).any()


def test_the_noise_of_a_list_sum_is_that_of_one_sum():
    data = graph(nodes=600, edges=3000)
    sent = sent_by(data.edge_index, 600)
    noise = torch.randn(600, 3, dtype=torch.float64)
    reads = torch.bincount(sent.messages.senders, minlength=600) > 0
    drawn = (sent.list_sums(sent.sums() + noise) - sent.list_sums(sent.sums()))[reads]
    assert drawn.std().item() == pytest.approx(1.0, rel=0.1)


def test_given_the_released_sums_a_prediction_moves_with_its_own_row_and_list_alone(monkeypatch):
    given = torch.randn(len(DATA.x), 3)
    monkeypatch.setattr(Sent, "noisy_sums", lambda *_: given)
    monkeypatch.setattr(hop_training, "step", lambda *_: None)
    whole = made().fit(DATA)
    before = whole.predict_proba(DATA)
    for node in (0, 5, 17):
        x, y = DATA.x.clone(), DATA.y.clone()
        x[node], y[node] = -x[node], (y[node] + 1) % 3
        kept = DATA.edge_index[:, DATA.edge_index[0] != node]
        other = changed(DATA, x=x, y=y, edge_index=kept)
        after = made().fit(other).predict_proba(other)
        moved = (after != before).any(1).nonzero().flatten().tolist()
        assert moved == [node]


def test_the_encoder_comes_first_and_untrained_nodes_send_what_it_says():
    sent, noisy = [], Sent.noisy_sums

    def note(self, mechanism, rng):
        sent.append(self.rows)
        return noisy(self, mechanism, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sent, "noisy_sums", note)
        method = made().fit(DATA, rng=secret(fixed_seed=1))
    assert [part.name for part in method.plan_.parts] == ["encoder", "hop1", "classifier"]
    rows, train = sent[0], DATA.train_mask
    assert torch.equal(rows[train].argmax(1), DATA.y[train])
    assert torch.allclose(rows[train].norm(dim=1), torch.ones(int(train.sum())), atol=1e-3)
    beliefs = method.network_.log_probabilities(hop_training.read_rows(method, DATA))
    assert torch.equal(rows[~train].argmax(1), beliefs[~train].argmax(1))
    assert (rows[~train].norm(dim=1) < 1).all()
    assert method.cache_.shape == (len(DATA.x), 2, 3)


@pytest.mark.parametrize(
    "settings, error, said",
    [
        ({"unit": "edge", "messages": "belief"}, UnprovenError, "own list"),
        ({"messages": "belief", "weighting": "similarity"}, UnprovenError, "must not depend"),
        ({"messages": "belief", "weighting": "attention"}, UnprovenError, "soft cap|must not"),
        ({"messages": "label", "trained_weight": 0.5}, InvalidInputError, "must be left out"),
        ({"messages": "belief", "paper": True}, UnprovenError, "papers send encodings"),
        ({"trained_weight": 0.0}, InvalidInputError, "trained_weight"),
    ],
)
def test_what_has_no_proof_is_refused(settings, error, said):
    with pytest.raises(error, match=said):
        made(**settings).plan(FACTS)


def test_what_a_user_sets_wins_over_the_rule():
    plan = GAP(epsilon=8.0).plan(FACTS)
    encoder, head = plan.part("encoder"), plan.part("classifier")
    assert (encoder.rate, head.rate) == (1.0, 1.0)
    assert (encoder.optimizer, encoder.learning_rate) == ("sgd", 2.0)
    assert GAP(epsilon=1.0).plan(FACTS).part("encoder").learning_rate == 1.0
    given = {"steps": 7, "sample_rate": 0.25, "optimizer": "adam", "learning_rate": 0.03}
    plan = GAP(epsilon=8.0, max_grad_norm=0.7, **given).plan(FACTS)
    for name in ("encoder", "classifier"):
        part = plan.part(name)
        assert (part.count, part.rate, part.optimizer) == (7, 0.25, "adam")
        assert (part.learning_rate, part.max_grad_norm) == (0.03, 0.7)
    assert hop_rules.stepping("encoder", messages="label", epsilon=8.0).steps == 150


def test_wide_rows_are_read_whole_unless_a_user_projects_them():
    facts = Facts(num_nodes=60, num_features=5000, num_classes=3, num_train=45, directed=False)
    assert made().network(facts).in_channels == 5000
    assert made(project_above=1024).network(facts).in_channels == 256
    assert made(messages="label").network(facts).in_channels == 256


@pytest.mark.parametrize("hops", [1, 2])
def test_parameters_are_counted(hops):
    description = made(hops=hops).network(FACTS)
    built = sum(weight.numel() for weight in description.build().parameters())
    assert description.num_parameters == built
