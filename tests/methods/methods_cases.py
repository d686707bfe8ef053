"""Small graphs for methods, quick settings, and a record of what a run draws and releases."""

import copy
import dataclasses
from types import SimpleNamespace

import torch
from torch_geometric.data import Data

from graphveil.graph.collate import collate
from graphveil.graph.link_splits import split_links
from graphveil.graph.splits import split
from graphveil.mechanisms import Gaussian
from graphveil.methods import METHODS
from graphveil.rng import SecretStream

FEATURES, CLASSES, NODES = 5, 3, 60
QUICK = {"steps": 4, "hidden_channels": 4, "open_steps": 4}
OF_LABELS = [name for name, kind in METHODS.items() if kind.record != "link"]
OF_NODES = {name: kind for name, kind in METHODS.items() if kind.record == "node"}
PRIVATE = [name for name, kind in OF_NODES.items() if kind.private]
OPEN = [name for name in OF_NODES if name not in PRIVATE]


def graph(seed=0, nodes=NODES, edges=120, *, features=FEATURES, directed=False):
    """Features that say a little of the label, random edges, three masks."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) % CLASSES
    x = torch.randn(nodes, features, generator=rng) + y.unsqueeze(1)
    source = torch.randint(nodes, (edges,), generator=rng)
    shift = torch.randint(1, nodes, (edges,), generator=rng)
    edge_index = torch.stack([source, (source + shift) % nodes])
    if not directed:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    data = Data(x=x, edge_index=edge_index.unique(dim=1), y=y)
    data.num_classes, data.directed = CLASSES, directed
    return split(data, seed=seed)


def graphs(seed=0, count=NODES, *, classes=CLASSES, sizes=(1, 6)):
    """Small graphs; the mean of their features says a little of the class. Three masks."""
    rng = torch.Generator().manual_seed(seed)
    least, most = sizes
    listed = []
    for number in range(count):
        size = least + number % (most - least + 1)
        x = torch.randn(size, FEATURES, generator=rng) + number % classes
        edges = torch.randint(size, (2, 2 * size), generator=rng)
        edges = torch.cat([edges, edges.flip(0)], 1)[:, (edges[0] != edges[1]).repeat(2)]
        y = torch.tensor([number % classes])
        listed.append(Data(x=x, edge_index=edges.unique(dim=1), y=y))
    data = collate(listed, num_classes=classes)
    data.directed = False
    return split(data, seed=seed)


def links(seed=0, people=NODES, *, items=12, each=6):
    """People, public items, and lists of those that are a little like a person's row."""
    rng = torch.Generator().manual_seed(seed)
    target_x = torch.randn(items, 4, generator=rng)
    x = torch.randn(people, FEATURES, generator=rng)
    noise = torch.randn(people, items, generator=rng)
    best = (x[:, :4] @ target_x.t() + noise).topk(each, dim=1).indices
    owners = torch.arange(people).repeat_interleave(each)
    data = Data(x=x, target_x=target_x, links=torch.stack([owners, best.flatten()]))
    data.directed = True
    return split_links(data, (0.6, 0.2, 0.2), seed)


def links_of_people(seed=0, people=NODES, *, count=150, directed=False):
    """People linked to people."""
    rng = torch.Generator().manual_seed(seed)
    pairs = torch.randint(people, (2, count), generator=rng)
    pairs = pairs[:, pairs[0] != pairs[1]]
    pairs = pairs if directed else pairs.sort(dim=0).values
    data = Data(x=torch.randn(people, FEATURES, generator=rng), links=pairs.unique(dim=1))
    data.directed = directed
    return split_links(data, (0.6, 0.2, 0.2), seed)


def data_for(name, seed=0, records=NODES):
    """What a method classifies, nodes of a graph or whole graphs; or links."""
    make = {"node": graph, "graph": graphs, "link": links}[METHODS[name].record]
    return make(seed, records)


def changed(data, **values):
    """A copy of a graph with other attributes; None takes one away."""
    data = copy.copy(data)
    for name, value in values.items():
        if value is None:
            del data[name]
        else:
            data[name] = value
    return data


def made(name, **settings):
    """A method with quick settings, as far as it has them."""
    known = {field.name for field in dataclasses.fields(METHODS[name])}
    quick = {key: value for key, value in QUICK.items() if key in known}
    quick |= {"epsilon": 8.0} if METHODS[name].private else {}
    return METHODS[name](**(quick | settings))


def weights(method):
    """What was learnt: parameters, or the table of a network that has none."""
    learnt = list(method.network_.parameters()) or list(method.network_.buffers())
    kind = torch.float64 if any(one.dtype == torch.float64 for one in learnt) else torch.float32
    return torch.cat([values.detach().flatten().to(kind) for values in learnt])


def recorded(monkeypatch):
    """What goes through the Gaussian mechanism, and every coin, from here on."""
    seen = SimpleNamespace(releases=[], coins=[], keys=[])
    release, bernoulli, gumbel = Gaussian.release, SecretStream.bernoulli, SecretStream.gumbel

    def note_release(self, value, rng, **block):
        seen.releases.append((self, torch.as_tensor(value).clone(), rng))
        return release(self, value, rng, **block)

    def note_coins(self, probability, n):
        drawn = bernoulli(self, probability, n)
        seen.coins.append((probability, drawn.copy()))
        return drawn

    def note_keys(self, shape):
        drawn = gumbel(self, shape)
        seen.keys.append(drawn.copy())
        return drawn

    monkeypatch.setattr(Gaussian, "release", note_release)
    monkeypatch.setattr(SecretStream, "bernoulli", note_coins)
    monkeypatch.setattr(SecretStream, "gumbel", note_keys)
    return seen
