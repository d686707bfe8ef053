"""When data is the same, for a ledger: under another split, and in another order of its edges."""

import torch
from runs_cases import DATA

from graphveil.privacy.ledger_state import keyed_hash
from graphveil.runs import Source
from graphveil.runs.fingerprints import fingerprint_of


def test_the_same_data_is_the_same_under_another_split_and_order_of_edges():
    split = Source(data="memory", seed=5).arrange(DATA.clone()).training
    turned = DATA.clone()
    turned.edge_index = DATA.edge_index.flip(1)

    def hashed(data, key="key"):
        return fingerprint_of(data, keyed_hash(key))

    assert hashed(split) == hashed(DATA) == hashed(turned)
    twice = DATA.clone()
    twice.edge_index = torch.cat([DATA.edge_index, DATA.edge_index[:, :9]], 1)
    assert hashed(twice) == hashed(DATA)
    assert hashed(DATA, "other") != hashed(DATA)
    for name in ("x", "y", "edge_index"):
        other = DATA.clone()
        other[name] = other[name].flip(0) if name != "edge_index" else other[name][:, 1:]
        assert hashed(other) != hashed(DATA)
    other = DATA.clone()
    other.x = other.x.double()
    assert hashed(other) != hashed(DATA)
    other = DATA.clone()  # the same nodes in another order
    other.x, other.y, other.edge_index = DATA.x.flip(0), DATA.y.flip(0), 59 - DATA.edge_index
    assert hashed(other) != hashed(DATA)
