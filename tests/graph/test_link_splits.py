"""Splits of links: public, and deaf to other links."""

import pytest
import torch
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.graph.link_splits import LINK_MASKS, split_links


def two_types(sources=400, targets=30, one_type=False):
    generator = torch.Generator().manual_seed(0)
    links = torch.rand(sources, sources if one_type else targets, generator=generator) < 0.2
    if one_type:
        links = links.triu(1)
    pairs = links.nonzero().t().contiguous()
    data = Data(x=torch.zeros(sources, 2), links=pairs, directed=False)
    if not one_type:
        data.target_x = torch.zeros(targets, 3)
    data.link_time = torch.rand(pairs.shape[1], generator=generator) * 100
    return data


def parts(data):
    """The part of every pair, -1 of those in none."""
    number = sum((place + 1) * data[name].int() for place, name in enumerate(LINK_MASKS)) - 1
    return dict(zip(map(tuple, data.links.t().tolist()), number.tolist(), strict=True))


def keep(data, kept):
    result = Data(x=data.x, links=data.links[:, kept], directed=False)
    result.link_time = data.link_time[kept]
    if "target_x" in data:
        result.target_x = data.target_x
    return result


WAYS = [
    {"by": "random"},
    {"by": "source", "known": 0.4},
    {"by": "time", "times": (60, 80)},
]


@pytest.mark.parametrize("one_type", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["by"])
def test_no_link_decides_about_another(way, one_type):
    data = two_types(60, 30, one_type)
    whole = parts(split_links(data, seed=3, **way))
    kept = torch.rand(data.links.shape[1]) < 0.5
    some = parts(split_links(keep(data, kept), seed=3, **way))
    assert some == {pair: whole[pair] for pair in some}
    assert len(set(whole.values())) == 3


def test_shares_of_random_links_are_those_asked_for():
    data = split_links(two_types(), (0.5, 0.2, 0.2), seed=1)
    shares = [float(data[name].float().mean()) for name in LINK_MASKS]
    assert shares == pytest.approx([0.5, 0.2, 0.2], abs=0.03)
    assert data.train_mask.all()
    again = split_links(two_types(), (0.5, 0.2, 0.2), seed=2)
    assert not torch.equal(again.test_links, data.test_links)


def test_withheld_sources_are_trained_on_nowhere():
    data = split_links(two_types(), (0.6, 0.2, 0.2), by="source", known=0.5)
    assert int(data.train_mask.sum()) == 240
    of_withheld = ~data.train_mask[data.links[0]]
    assert bool(of_withheld[data.test_links | data.val_links].all())
    known = data.train_links[of_withheld]
    assert float(known.float().mean()) == pytest.approx(0.5, abs=0.05)
    none_known = split_links(two_types(), (0.6, 0.2, 0.2), by="source", known=0.0)
    assert bool(none_known.train_mask[none_known.links[0]][none_known.train_links].all())


def test_withheld_sources_of_one_type_keep_no_link_in_training():
    data = split_links(two_types(60, one_type=True), (0.6, 0.2, 0.2), by="source")
    one, other = data.links
    inside = data.train_mask[one] & data.train_mask[other]
    assert torch.equal(inside, data.train_links)


def test_time_is_cut_at_the_public_moments():
    data = split_links(two_types(), by="time", times=(60, 80))
    assert torch.equal(data.train_links, data.link_time < 60)
    assert torch.equal(data.test_links, data.link_time >= 80)


def test_what_does_not_fit_is_refused():
    data = two_types()
    with pytest.raises(InvalidInputError, match="two public moments 'times'"):
        split_links(data, by="time")
    with pytest.raises(InvalidInputError, match="two public moments 'times'"):
        split_links(data, times=(1, 2))
    with pytest.raises(InvalidInputError, match="in their order"):
        split_links(data, by="time", times=(2, 1))
    with pytest.raises(InvalidInputError, match="leave a source"):
        split_links(data, (0.0, 0.5, 0.5), by="source")
    del data.link_time
    with pytest.raises(InvalidInputError, match="time of every link"):
        split_links(data, by="time", times=(1, 2))
