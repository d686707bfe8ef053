"""A synthetic shop: who bought which item, and when; the links are private, the items public.

**Nobody in it is real.** Every item is about one or two of 24 topics, which words of its text tell,
has one of three price levels, and is more or less popular. A person has three tastes, whose weights
move in two years, and a price level. A purchase is of a taste, or of the topic that goes with it,
as cards go with cameras, or of whatever sells. Age and region say little of tastes; what one bought
before says much.

The last 90 days are tested on, the 60 days before them validate: the dates are public.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil import _validate
from graphveil.data._cache import refuse_variant
from graphveil.data._link_sets import SHOP_PEOPLE, shop_variant
from graphveil.graph.link_splits import split_links
from graphveil.rng import seeded

DAYS = 730
SPLIT_DAYS = (580.0, 640.0)  # where validation begins, and where testing does
PEOPLE, ITEMS, PURCHASES = SHOP_PEOPLE, 2_000, 400_000
_TOPICS, _LEVELS, _TASTES = 24, 3, 3
_WORDS_OF_TOPIC, _PLAIN_WORDS = 5, 40
_AGES, _REGIONS = 6, 8
_BY_TASTE, _BY_COMPANION = 0.6, 0.85  # running shares; the rest is bought because it sells
_ROUNDS = 8  # of drawing, until there are enough different pairs
_AT_ONCE = 1 << 20  # purchases that are drawn together

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


def shop_links(
    num_people: int = PEOPLE,
    num_items: int = ITEMS,
    num_purchases: int = PURCHASES,
    *,
    seed: int = 0,
) -> Data:
    """People, items, and about ``num_purchases`` different pairs of the two, with masks by time.

    ``x`` are the people's ages and regions, ``target_x`` the counts of words in texts and the price
    level of items. The same seed gives the same shop.

    *Guarantee*: none needed, nobody in it is real.
    """
    people = _validate.integer("num_people", num_people, "[100, 1e8]")
    items = _validate.integer("num_items", num_items, "[100, 1e7]")
    most = people * items // 10
    purchases = _validate.integer("num_purchases", num_purchases, f"[{people}, {most}]")
    rng = seeded(seed, "shop").generator()
    shelves, texts = _stock(rng, items)
    customers = _Customers.draw(rng, people)
    pairs, days = _buy(rng, customers, shelves, purchases)
    data = Data(x=torch.from_numpy(customers.rows()), target_x=torch.from_numpy(texts))
    data.links, data.link_time = torch.from_numpy(pairs), torch.from_numpy(days)
    data.columns = [f"age {n}" for n in range(_AGES)] + [f"region {n}" for n in range(_REGIONS)]
    words = _TOPICS * _WORDS_OF_TOPIC + _PLAIN_WORDS
    data.target_columns = [
        *(f"word {n}" for n in range(words)),
        *(f"price level {n}" for n in range(_LEVELS)),
    ]
    data.ids = [f"P-{number:06d}" for number in range(people)]
    data.target_ids = [f"I-{number:05d}" for number in range(items)]
    data.directed, data.relation = True, "buys"
    data.source_name, data.target_name = "person", "item"
    return split_links(data, by="time", times=SPLIT_DAYS)


def shop(name: str, root: Path, variant: str) -> Data:
    """The data set ``shop`` of the catalog; ``variant`` is PEOPLE or PEOPLE:SEED."""
    sizes = shop_variant(variant)
    if sizes is None:
        rule = "':PEOPLE' from 1,000 to 1,000,000, and that by ':SEED'"
        refuse_variant("shop", rule, name, "; write 'shop:5000' or 'shop:20000:7'")
    people, seed = sizes
    return shop_links(people, ITEMS, PURCHASES * people // PEOPLE, seed=seed)


# --- items ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shelves:
    """Items by topic and price level; a shelf is a stretch of a running sum of popularity."""

    items: Numbers  # in the order of shelves
    running: Floats  # of their popularity
    starts: Floats  # of each shelf in it
    ends: Floats

    def draw(self, rng: np.random.Generator, low: Floats, high: Floats) -> Numbers:
        """An item of each stretch, the more popular the likelier."""
        place = np.searchsorted(self.running, low + (high - low) * rng.random(len(low)), "right")
        return self.items[np.minimum(place, len(self.items) - 1)]


def _stock(rng: np.random.Generator, count: int) -> tuple[_Shelves, NDArray[np.float32]]:
    """The items on their shelves, and their texts with the price level."""
    topic = rng.integers(_TOPICS, size=count)
    second = np.where(rng.random(count) < 0.4, rng.integers(_TOPICS, size=count), topic)
    level = rng.integers(_LEVELS, size=count)
    popularity = (rng.permutation(count) + 1.0) ** -0.7

    words = _TOPICS * _WORDS_OF_TOPIC + _PLAIN_WORDS
    texts = np.zeros((count, words + _LEVELS), dtype=np.float32)
    rows = np.arange(count)
    for _ in range(12):  # words of a text: of its topics, or plain ones
        about = np.where(rng.random(count) < 0.7, topic, second)
        own = about * _WORDS_OF_TOPIC + rng.integers(_WORDS_OF_TOPIC, size=count)
        plain = _TOPICS * _WORDS_OF_TOPIC + rng.integers(_PLAIN_WORDS, size=count)
        np.add.at(texts, (rows, np.where(rng.random(count) < 0.45, own, plain)), 1.0)
    texts[rows, words + level] = 1.0

    shelf = topic * _LEVELS + level
    order = np.argsort(shelf, kind="stable")
    running = np.cumsum(popularity[order])
    counts = np.bincount(shelf, minlength=_TOPICS * _LEVELS)
    sums = np.concatenate([[0.0], running])
    last = np.cumsum(counts)
    shelves = _Shelves(order, running, sums[last - counts], sums[last])
    return shelves, texts


# --- people ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Customers:
    """What people are like; only ages and regions stand in the data."""

    age: Numbers
    region: Numbers
    tastes: Numbers  # (people, tastes), the topics
    level: Numbers
    busy: Floats  # running sum of how much people buy
    joined: Floats  # the first day

    @classmethod
    def draw(cls, rng: np.random.Generator, count: int) -> _Customers:
        """So many people."""
        age, region = rng.integers(_AGES, size=count), rng.integers(_REGIONS, size=count)
        likes = rng.normal(size=(_AGES, _TOPICS)) * 0.5 + rng.normal(size=(1, _TOPICS)) * 0.3
        chance = np.exp(likes)
        running = (chance / chance.sum(1, keepdims=True)).cumsum(1)
        draws = rng.random((count, _TASTES))
        tastes = np.empty((count, _TASTES), dtype=np.int64)
        for group in range(_AGES):
            inside = age == group
            tastes[inside] = np.searchsorted(running[group, :-1], draws[inside])
        busy = np.cumsum(0.3 + rng.lognormal(-0.6, 0.7, size=count))
        level = rng.integers(_LEVELS, size=count)
        return cls(age, region, tastes, level, busy, rng.random(count) * 0.6 * DAYS)

    def rows(self) -> NDArray[np.float32]:
        """The people's own columns."""
        ages = self.age[:, None] == np.arange(_AGES)
        regions = self.region[:, None] == np.arange(_REGIONS)
        return np.concatenate([ages, regions], 1).astype(np.float32)


# --- purchases ------------------------------------------------------------------------------------


def _buy(
    rng: np.random.Generator, customers: _Customers, shelves: _Shelves, count: int
) -> tuple[Numbers, NDArray[np.float32]]:
    """About ``count`` different pairs (2, count), sorted, each with the day of its purchase."""
    companion = rng.permutation(_TOPICS)  # what goes with a topic
    items = len(shelves.items)
    keys, days = np.empty(0, np.int64), np.empty(0, np.float32)
    for _ in range(_ROUNDS):
        missing = count - len(keys)
        if missing <= 0:
            break
        parts = [(keys, days)]
        left = int(1.15 * missing) + 16
        while left > 0:
            buyer, item, day = _draw_purchases(
                rng, customers, shelves, companion, min(left, _AT_ONCE)
            )
            parts.append((buyer * items + item, day))
            left -= len(buyer)
        keys = np.concatenate([key for key, _ in parts])
        days = np.concatenate([day for _, day in parts])
        # A pair keeps the day it was first drawn with.
        keys, first = np.unique(keys, return_index=True)
        days = days[first]
    if len(keys) > count:
        kept = np.sort(rng.permutation(len(keys))[:count])
        keys, days = keys[kept], days[kept]
    return np.stack([keys // items, keys % items]), days


def _draw_purchases(
    rng: np.random.Generator,
    customers: _Customers,
    shelves: _Shelves,
    companion: Numbers,
    count: int,
) -> tuple[Numbers, Numbers, NDArray[np.float32]]:
    """Buyers, items and days; a pair may come twice."""
    buyer = np.searchsorted(customers.busy, rng.random(count) * customers.busy[-1], "right")
    buyer = np.minimum(buyer, len(customers.busy) - 1)
    joined = customers.joined[buyer]
    day = joined + (DAYS - joined) * rng.random(count)
    # The first taste fades for the second.
    share = 0.6 - 0.3 * day / DAYS
    draw = rng.random(count)
    which = (draw > share).astype(np.int64) + (draw > 0.85)
    topic = customers.tastes[buyer, which]
    why = rng.random(count)
    topic = np.where((why > _BY_TASTE) & (why <= _BY_COMPANION), companion[topic], topic)
    own_level = rng.random(count) < 0.7
    level = np.where(own_level, customers.level[buyer], rng.integers(_LEVELS, size=count))
    shelf = topic * _LEVELS + level
    plain = why > _BY_COMPANION
    low = np.where(plain, 0.0, shelves.starts[shelf])
    high = np.where(plain, shelves.running[-1], shelves.ends[shelf])
    return buyer, shelves.draw(rng, low, high), day.astype(np.float32)
