"""The synthetic shop: its shape, that it repeats, and that personal history helps."""

import numpy as np
import pytest
import torch

from graphveil._errors import InvalidInputError
from graphveil.data._link_sets import shop_variant
from graphveil.data.catalog import load, sizes_of
from graphveil.data.shop import DAYS, SPLIT_DAYS, shop_links
from graphveil.methods.ranking import measure_links


@pytest.fixture(scope="module")
def small():
    return shop_links(3000, 500, 60_000, seed=1)


def test_its_shape(small):
    assert small.links.shape == (2, 60_000)
    assert small.x.shape == (3000, len(small.columns))
    assert small.target_x.shape == (500, len(small.target_columns))
    pairs = small.links[0] * 500 + small.links[1]
    assert len(pairs.unique()) == 60_000
    assert float(small.link_time.min()) >= 0
    assert float(small.link_time.max()) <= DAYS
    assert torch.equal(small.test_links, small.link_time >= SPLIT_DAYS[1])
    masks = small.train_links.int() + small.val_links.int() + small.test_links.int()
    assert bool((masks == 1).all())


def test_it_repeats_by_its_seed(small):
    again, other = shop_links(3000, 500, 60_000, seed=1), shop_links(3000, 500, 60_000, seed=2)
    assert torch.equal(again.links, small.links)
    assert torch.equal(again.target_x, small.target_x)
    assert not torch.equal(other.links, small.links)


def test_what_one_bought_says_more_than_what_sells(small):
    bought = np.zeros((3000, 500))
    bought[tuple(small.links[:, small.train_links].numpy())] = 1
    sold = bought.sum(0)
    together = bought.T @ bought / np.sqrt(np.outer(sold + 1, sold + 1))
    np.fill_diagonal(together, 0)
    popular = measure_links(lambda some, _: np.tile(sold, (len(some), 1)), small).figures
    personal = measure_links(lambda some, _: bought[some] @ together, small).figures
    assert personal["mrr"] > 1.5 * popular["mrr"]
    assert popular["roc_auc"] > 0.6


def test_the_catalog_knows_its_sizes():
    sizes, data = sizes_of("shop:1000:3"), load("shop:1000:3")
    assert data.x.shape == (sizes.num_records, sizes.num_features)
    assert data.target_x.shape == (sizes.num_classes, sizes.target_features)
    assert sizes.split == (int(data.train_mask.sum()), 0, 0)
    with pytest.raises(InvalidInputError, match="write 'shop:5000'"):
        load("shop:7")


def test_variants():
    assert shop_variant("") == (20_000, 0)
    assert shop_variant("5000:7") == (5000, 7)
    assert shop_variant("5") is None
    assert shop_variant("5000:x") is None


def test_sizes_that_make_no_shop_are_refused():
    with pytest.raises(InvalidInputError, match="num_purchases"):
        shop_links(3000, 500, 1_000_000)
    with pytest.raises(InvalidInputError, match="num_items"):
        shop_links(3000, 5, 3000)
