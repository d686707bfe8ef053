"""The open baselines, and the figures that methods are measured by."""

import pytest
import torch
from methods_cases import graph, made, weights
from sklearn.metrics import f1_score

from graphveil._errors import InvalidInputError
from graphveil.methods import Facts, baselines
from graphveil.runs import Arranged, Source, measure

DATA = graph()


def test_a_gnn_in_groups_reads_no_edge_between_them_in_training():
    whole = made("gnn", splits=1).fit(DATA)
    cut = made("gnn", splits=len(DATA.x)).fit(DATA)
    assert not torch.equal(weights(whole), weights(cut))
    apart = made("gnn", splits=len(DATA.x))
    assert apart.read_in_training(DATA).edge_index.shape[1] == 0
    assert apart.messages(DATA).edge_index.shape[1] > 0  # predictions read the whole graph
    torch.testing.assert_close(
        made("gnn", splits=1).read_in_training(DATA).edge_index, whole.messages(DATA).edge_index
    )


def test_a_gnn_under_caps_reads_no_more_in_training_than_they_say():
    shallow = made("gnn", num_layers=1, sender_cap=2).read_in_training(DATA).edge_index
    assert torch.bincount(shallow[0]).max() == 2
    assert DATA.train_mask[shallow[1]].all()  # no message is spent on whom nobody trains
    deep = made("gnn", num_layers=2, sender_cap=2, receiver_cap=1).read_in_training(DATA).edge_index
    assert not DATA.train_mask[deep[1]].all()
    assert torch.bincount(deep[1]).max() == 1
    whole = made("gnn", num_layers=1, sender_cap=2).messages(DATA).edge_index
    torch.testing.assert_close(whole, made("gnn").messages(DATA).edge_index)


@pytest.mark.parametrize("name", ["mlp", "gnn"])
def test_a_batch_of_all_training_nodes_is_the_whole_graph(name):
    shape = {"steps": 10, "dropout": 0.0}
    whole, batched = (
        made(name, batch_size=size, **shape).fit(DATA)
        for size in (None, int(DATA.train_mask.sum()))
    )
    torch.testing.assert_close(weights(whole), weights(batched), rtol=1e-4, atol=1e-5)
    few = made(name, batch_size=5, **shape).fit(DATA)
    assert not torch.allclose(weights(whole), weights(few), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_a_batch_reads_what_its_roots_reach_and_says_the_same(layers):
    method = made("gnn", num_layers=layers or 1)
    network = method.build(Facts.of(DATA)).eval()
    if not layers:
        network = made("mlp").build(Facts.of(DATA)).eval()
    messages, roots = method.messages(DATA), torch.tensor([3, 59, 17])
    x = method.prepare(DATA)
    torch.testing.assert_close(
        baselines._on_roots(network, x, messages, roots), network.on_graph(x, messages)[roots]
    )


def test_a_gnn_with_dot_products_heads_and_a_decoder():
    settings = {"conv": "gat", "attention": "dot", "heads": 2, "decoder_layers": 2}
    network = made("gnn", num_layers=1, **settings).build(Facts.of(DATA))
    assert network.convs[0].attention == "dot"
    assert network.convs[0].heads == 2
    assert len(list(network.decoder.parameters())) == 4
    made("gnn", num_layers=1, batch_size=9, **settings).fit(DATA)


def test_optimizers_and_depth_of_the_baselines():
    assert not torch.equal(
        weights(made("mlp").fit(DATA)), weights(made("mlp", optimizer="sgd").fit(DATA))
    )
    plain, deep = (made("gnn", encoder_layers=n).build(Facts.of(DATA)) for n in (0, 2))
    assert not list(plain.encoder.parameters())
    assert len(list(deep.encoder.parameters())) == 4
    for settings in (
        {"optimizer": "adagrad"},
        {"splits": 0},
        {"splits": 61},
        {"encoder_layers": -1},
    ):
        with pytest.raises(InvalidInputError, match=next(iter(settings))):
            made("gnn", **settings).plan(Facts.of(DATA))


def test_f1_is_that_of_the_labelled_test_nodes():
    method = made("mlp").fit(DATA)
    arranged = Arranged(training=DATA, testing=DATA, mode=None, split="given")
    found = measure(method, arranged)
    mask = DATA.test_mask
    y, guess = DATA.y[mask].numpy(), method.predict(DATA)[mask].numpy()
    hits = [
        (2 * ((y == c) & (guess == c)).sum()) / ((y == c).sum() + (guess == c).sum())
        for c in range(3)
    ]
    assert found["test_macro_f1"] == pytest.approx(sum(hits) / 3)
    assert found["test_micro_f1"] == pytest.approx(found["test_accuracy"])
    assert found["test_macro_f1"] == pytest.approx(f1_score(y, guess, average="macro"))


def test_a_source_trains_on_the_share_it_is_told():
    whole, half = (
        Source(data="social", train_share=share, seed=1).expected().num_train
        for share in (1.0, 0.5)
    )
    assert half == whole // 2
    with pytest.raises(InvalidInputError, match="train_share"):
        Source(data="social", train_share=0.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"conv": "sage"}, "convolutions 'gcn' and nothing else"),
        ({"decoder_layers": 1}, "decoder_layers=1"),
        ({"batch_size": 8}, "batch_size=8"),
        ({"sender_cap": 2}, "sender_cap=2"),
        ({"receiver_cap": 2}, "receiver_cap=2"),
    ],
)
def test_training_in_turn_refuses_what_it_would_not_read(settings, words):
    method = baselines.GNNBaseline(epochs=2, **{"encoder_layers": 0, **settings})
    facts = Facts(num_nodes=50, num_features=4, num_classes=2, num_train=30)
    with pytest.raises(InvalidInputError, match=words):
        method.plan(facts)
