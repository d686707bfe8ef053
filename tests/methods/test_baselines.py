"""The open baselines, and the figures that methods are measured by."""

import pytest
import torch
from methods_cases import graph, made, weights
from sklearn.metrics import f1_score

from graphveil._errors import InvalidInputError
from graphveil.methods import Facts
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
