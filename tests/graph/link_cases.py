"""Small links, neighbours of them, and what every loss term adds: for brute force."""

import torch
from torch_geometric.data import Data

from graphveil.graph.link_terms import edge_terms, people_terms, person_terms
from graphveil.graph.links import own_lists, statements

CONTENT = 2


def bipartite(seed, people=6, items=5, links=14):
    """People with rows and lists of public items; one of them has a long list."""
    rng = torch.Generator().manual_seed(seed)
    keys = torch.randperm(people * items, generator=rng)[:links]
    keys = torch.cat([keys, torch.arange(items)]).unique()  # person 0 lists everything
    data = Data(
        x=torch.randn(people, 3, generator=rng), target_x=torch.randn(items, CONTENT, generator=rng)
    )
    data.links = torch.stack([keys // items, keys % items])
    data.directed = True
    return masked(data, seed, people)


def of_people(seed, people=8, links=16, *, directed=True):
    """People linked to people; person 0 names everybody, and person 1 is named by everybody."""
    rng = torch.Generator().manual_seed(seed)
    pairs = torch.randint(people, (2, links), generator=rng)
    others = torch.arange(people)
    hubs = torch.cat([torch.stack([0 * others, others]), torch.stack([others, 0 * others + 1])], 1)
    pairs = torch.cat([pairs, hubs], 1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    pairs = pairs if directed else pairs.sort(dim=0).values
    data = Data(x=torch.randn(people, CONTENT, generator=rng), links=pairs.unique(dim=1))
    data.directed = directed
    return masked(data, seed, people)


def masked(data, seed, people):
    """All links are trained on, and all people but one."""
    data.train_links = torch.ones(data.links.shape[1], dtype=torch.bool)
    data.train_mask = torch.arange(people) != seed % people
    return data


# --- one unit more or less ------------------------------------------------------------------------


def lists_of_all(data):
    """Everybody's own list: a pair without a direction is a statement of each end."""
    source, target = statements(data)
    return source.copy(), target.copy()


def withhold(data, person):
    """No row and no list; other lists go on naming the person."""
    return replace(data, person, torch.zeros_like(data.x[0]), [])


def replace(data, person, row, targets):
    """Another row and another list in the person's place."""
    result = Data(x=data.x.clone(), directed=True)
    if "target_x" in data:
        result.target_x = data.target_x
    result.x[person] = row
    source, target = map(torch.from_numpy, lists_of_all(data))
    stays = source != person
    own = torch.tensor(targets, dtype=torch.long)
    result.links = torch.stack(
        [
            torch.cat([source[stays], torch.full_like(own, person)]),
            torch.cat([target[stays], own]),
        ]
    )
    result.train_links = torch.ones(result.links.shape[1], dtype=torch.bool)
    result.train_mask = data.train_mask
    return result


def delete(data, link):
    """One link is gone."""
    result = Data(**data.to_dict())
    stays = torch.arange(data.links.shape[1]) != link
    result.links, result.train_links = data.links[:, stays], data.train_links[stays]
    return result


# --- what terms add -------------------------------------------------------------------------------


def terms_of_persons(data, keep=3, negatives=2, seed=0):
    table = torch.cat([data.target_x, torch.ones(len(data.target_x), 1)], 1).double()
    return person_terms(
        data.x, own_lists(data), table, CONTENT, data.train_mask,
        keep=keep, negatives=negatives, seed=seed,
    )  # fmt: skip


def terms_of_people(data, cap=2, cap_in=2, negatives=1, seed=0):
    return people_terms(
        data.x, own_lists(data), data.x.double(), data.train_mask,
        cap=cap, cap_in=cap_in, negatives=negatives, seed=seed,
    )  # fmt: skip


def terms_of_edges(data, negatives=2, seed=0):
    one_type = "target_x" not in data
    table = data.x if one_type else data.target_x
    both = one_type and not data.directed
    return edge_terms(
        data.x, data.links, table.double(), both=both, negatives=negatives, seed=seed, divisor=9.0
    )


def contributions(terms, step=0, bound=1.0, *, by_pair=False):
    """What every term adds, by its place: clipped gradients of a linear scorer at fixed weights.

    They come of plain autograd, one term at a time.
    """
    terms.begin(step)
    drawn = torch.arange(len(terms))
    rng = torch.Generator().manual_seed(1)
    added = {}
    for term in drawn:
        for batch in terms.batches(term.view(1)):
            weight = torch.randn(batch.table.shape[1], batch.rows.shape[1] + 1, generator=rng)
            rng.manual_seed(1)
            weight = weight.double().requires_grad_()
            z = torch.cat([batch.rows, torch.ones(len(batch.rows), 1)], 1).double() @ weight.t()
            negative = batch.negative
            negative = negative.expand(len(z), -1) if negative.dim() == 1 else negative
            places = torch.cat([batch.positive.unsqueeze(1), negative], 1)
            scores = (z.unsqueeze(1) * batch.table[places]).sum(2)
            loss = -scores.log_softmax(1)[:, 0].mean()
            (gradient,) = torch.autograd.grad(loss, weight)
            gradient = gradient.flatten()
            clipped = gradient * min(1.0, bound / float(gradient.norm().clamp_min(1e-30)))
            place = int(term)
            if by_pair:
                first = terms.offsets[place]
                place = (int(terms.source[first]), int(terms.target[first]))
            added[place] = clipped
    return added


def count_changes(present, withheld):
    """How many terms are deleted, and how many inserted, when a unit is taken away."""
    deleted = inserted = 0
    for place in present.keys() | withheld.keys():
        one, other = present.get(place), withheld.get(place)
        same = one is not None and other is not None and torch.equal(one, other)
        deleted += one is not None and not same
        inserted += other is not None and not same
    return deleted, inserted


def moved(present, withheld):
    """How far the sum of all terms moves."""
    zero = torch.zeros_like(next(iter({**present, **withheld}.values())))
    return float((sum(present.values(), zero) - sum(withheld.values(), zero)).norm())
