"""Which links are trained on, and which are tested: by pair, by source, by time.

==========  ====================================================================================
by          a link's part
==========  ====================================================================================
random      a keyed hash of its two ids: no other link has a say
source      that of its source: whole people are withheld (fold-in). Of a withheld source
            the share ``known`` of its list, again by the hash, stays known to whoever predicts for
            it. Where sources and targets are one type, a link with a withheld end is withheld
time        its time, beside two public moments
==========  ====================================================================================

A part that the data came with is *given*, and is taken as it is. The masks are ``train_links``,
``val_links`` and ``test_links`` over links, and ``train_mask`` over sources. A known list is what
is in neither of the last two.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.caps import priorities, priority_keys
from graphveil.graph.shares import SHARES, check_fractions, part_ends
from graphveil.rng import seeded

LINK_MASKS = ("train_links", "val_links", "test_links")
WAYS = ("random", "source", "time")


def split_links(
    data: Data,
    fractions: Sequence[float] = SHARES,
    seed: int = 0,
    *,
    by: str = "random",
    known: float = 0.5,
    times: Sequence[float] | None = None,
) -> Data:
    """A copy of ``data`` with the three masks of links, and ``train_mask`` of sources.

    ``fractions`` are the three shares of links, or of sources; what they leave of 1 is in no part.
    ``times`` are two public moments, in the unit of ``link_time``: where validation begins, and
    where testing does. ``known`` is of a withheld source's list.

    *Guarantee*: no cost. The part of a link depends on its own ids and time, ``seed`` and public
    numbers, never on another link.
    """
    _validate.choice("by", by, WAYS)
    shares = check_fractions(fractions)
    if (times is not None) != (by == "time"):
        raise InvalidInputError(
            "A split by time must have two public moments 'times', and no other split takes them. "
            f"Got by={by!r} with times={times!r} instead; state them, or split at random."
        )
    result = copy.copy(data)
    sources = len(data.x)
    result.train_mask = torch.ones(sources, dtype=torch.bool)
    if by == "source":
        part, result.train_mask = _by_source(data, shares, seed, known)
    elif by == "time":
        part = _by_time(data, times or ())
    else:
        drawn = hash_links(data.links, seed, "split of links")
        part = _place(drawn, shares)
    for number, name in enumerate(LINK_MASKS):
        result[name] = part == number
    if not bool(result.train_mask.any()):
        raise InvalidInputError(
            f"The 'fractions' parameter must leave a source to train on. Got {tuple(fractions)} of "
            f"{sources} sources instead; take a larger first share."
        )
    return result


def hash_links(links: Tensor, seed: int, purpose: str) -> Tensor:
    """For each link a number in [0, 1) that its two ids and the key decide, and nothing else."""
    source, target = (ends.numpy().astype(np.uint32) for ends in links)
    keys = priority_keys(seed, purpose)
    return torch.from_numpy(priorities(source, target, keys).astype(np.float64) / 2.0**32)


def _place(drawn: Tensor, shares: Sequence[float]) -> Tensor:
    """0, 1 or 2 by the running shares; 3 beyond them."""
    ends = torch.tensor(np.cumsum(shares), dtype=torch.float64)
    ends[-1] = 1.0 if float(ends[-1]) > 1 - 1e-9 else ends[-1]
    return torch.searchsorted(ends, drawn, right=True)


def _by_source(
    data: Data, shares: Sequence[float], seed: int, known: float
) -> tuple[Tensor, Tensor]:
    """The part of every link, and who is trained on."""
    known = _validate.number("known", known, "[0, 1)")
    sources = len(data.x)
    order = torch.from_numpy(seeded(seed, "split of sources").generator().permutation(sources))
    of_source = torch.full((sources,), 3)
    start = 0
    for number, end in enumerate(part_ends(sources, shares)):
        of_source[order[start:end]] = number
        start = end
    train_mask = of_source == 0
    one, other = data.links
    if "target_x" in data:
        part = of_source[one]
        drawn = hash_links(data.links, seed, "known links")
        # What is known of a withheld source is read, and never trained on.
        return torch.where((part > 0) & (part < 3) & (drawn < known), 0, part), train_mask
    left, right = of_source[one], of_source[other]
    return torch.maximum(left, right), train_mask


def _by_time(data: Data, times: Sequence[float]) -> Tensor:
    """The part of every link by its time."""
    if "link_time" not in data:
        raise InvalidInputError(
            "A split by time must have the time of every link, 'link_time'. Got data without it "
            "instead; give the column, or split by 'random' or 'source'."
        )
    if len(times) != 2 or not times[0] <= times[1]:
        raise InvalidInputError(
            "The 'times' parameter must be two moments in their order: where validation begins, "
            f"and where testing does. Got {tuple(times)} instead; swap them, or state both."
        )
    moments = torch.tensor([float(moment) for moment in times], dtype=torch.float64)
    return torch.searchsorted(moments, data.link_time.double(), right=True)
