"""What several processes are asked to do together: each answer is compared with that of one."""

import functools
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from graphveil import processes
from graphveil._errors import InvalidInputError
from graphveil.data.synthetic import social_network
from graphveil.grads.clipping import Quantile
from graphveil.grads.step import cross_entropy, make_private
from graphveil.graph import aggregation
from graphveil.graph.aggregation import Sent, incoming, unit_rows
from graphveil.graph.link_splits import split_links
from graphveil.graph.links import edges_as_links
from graphveil.graph.splits import split
from graphveil.mechanisms import Gaussian
from graphveil.methods import METHODS
from graphveil.methods.parts import Release
from graphveil.methods.sending import release_sums
from graphveil.rng import secret

HERE = Path(__file__).parent
NOISE, BOUND = 1.5, 0.7  # of steps of one's own
QUICK = {"steps": 6, "epsilon": 8.0, "hidden_channels": 8}
METHOD_CASES = {
    "dp-gnn": ("dp-gnn", {"delivery": 1.0, "sender_cap": 3}),
    "dp-gnn, two hops": ("dp-gnn", {"num_layers": 2, "sender_cap": 2, "receiver_cap": 3}),
    "dp-gnn, delivered": ("dp-gnn", {"delivery": 0.5, "sender_cap": 3}),
    "late-graph": ("late-graph", {}),
    "dp-mlp": ("dp-mlp", {"num_layers": 2}),
    "graph-split": ("graph-split", {"fresh_groups": 2, "dropout": 0.5}),
    "dpar": ("dpar", {"graph_rate": 0.5}),
    "gap": ("gap", {"unit": "node", "sender_cap": 3}),
    "gap, similarity": (
        "gap",
        {"messages": "encoding", "weighting": "similarity", "hops": 2, "capping": "soft"},
    ),
    "gap, edges": ("gap", {"unit": "edge", "hops": 2, "open_steps": 20, "head_steps": 20}),
    "gap, attention": (
        "gap",
        {"unit": "edge", "weighting": "attention", "open_steps": 20, "head_steps": 20},
    ),
    "graph-dpsgd": ("graph-dpsgd", {}),
}


@functools.cache
def data_for(name):
    if METHODS[name].record == "graph":
        sys.path.insert(0, str(HERE.parent / "methods"))
        import methods_cases

        return methods_cases.graphs(0, 60)
    return split(social_network(num_nodes=120, num_classes=3, num_features=5, seed=1), seed=0)


def fit(case):
    """Weights and certificate of a method whose secret stream is fixed."""
    name, settings = METHOD_CASES[case]
    method = _make(METHODS[name], settings)
    method.fit(data_for(name), rng=secret(fixed_seed=7))
    weights = {key: value.clone() for key, value in method.network_.state_dict().items()}
    return {"weights": weights, "certificate": method.certificate_.to_json()}


def _make(kind, settings):
    import dataclasses

    known = {field.name for field in dataclasses.fields(kind)}
    quick = {key: value for key, value in QUICK.items() if key in known}
    return kind(**(quick | settings))


# --- steps of one's own ---------------------------------------------------------------------------


class Silent(nn.Module):
    """Losses whose gradients are all zero, so that a step releases noise alone."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(50, 200, bias=False)

    def forward(self, x):
        return self.linear(x) * 0.0


def step_on(module, *, count=64, features=4, losses=cross_entropy, rate=0.5, **how):
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(count, features, generator=rng)
    y = torch.arange(count) % 3
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    how = {"noise_multiplier": NOISE, "max_grad_norm": BOUND, **how}
    return make_private(module, optimizer, (x, y), sample_rate=rate, losses=losses, **how)


def released_noise():
    """Zero gradients: what a step moves the weights by is its noise, on every rank the same."""
    torch.manual_seed(0)
    module, steps = Silent(), 4
    step = step_on(module, features=50, losses=lambda m, batch: m(batch[0]).sum(1))
    moved = []
    for _ in range(steps):
        before = module.linear.weight.detach().clone()
        step()
        moved.append((module.linear.weight.detach() - before) * 32)  # the expected batch
    return torch.stack(moved)


def learnt_bound():
    """An adaptive bound, and losses told, with a fixed stream."""
    torch.manual_seed(processes.current().rank)  # other weights everywhere: rank 0's count
    told, module = [], nn.Linear(4, 3)
    if processes.current().rank == 0:
        torch.manual_seed(0)
        module.reset_parameters()
    step = step_on(module, clipping=Quantile(0.3), rng=secret(fixed_seed=3))
    step.on_loss = told.append
    for _ in range(5):
        step()
    weights = module.weight.detach().clone()
    return {"bound": step.clipped.clipping.max_grad_norm, "told": told, "weights": weights}


class Drawing:
    """Examples that are augmented on their way, and write down what was drawn for that."""

    def __init__(self):
        self.x, self.y, self.drawn = torch.ones(64, 4), torch.arange(64) % 3, []

    def __len__(self):
        return len(self.y)

    def batches(self, drawn):
        self.drawn.append(float(torch.rand(()).double()))
        self.drawn += [float(np.random.random()), random.random()]
        yield self.x[drawn], self.y[drawn]


def side_coins():
    """Numbers drawn beside a step, for the terms of one rank."""
    module, examples = nn.Linear(4, 3), Drawing()
    step = make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        examples,
        sample_rate=0.9,
        noise_multiplier=1.0,
        rng=secret(fixed_seed=5),
    )
    for _ in range(3):
        step()
    return examples.drawn


def refusals():
    """What is refused where processes differ, or have nothing to share."""
    said = {}
    rank = processes.current().rank
    links = split_links(edges_as_links(social_network(num_nodes=60, num_features=5, seed=1)))
    for name, data in {"open-gap": data_for("open-gap"), "dp-popularity": links}.items():
        quick = {"epsilon": 8.0} if METHODS[name].private else {}
        try:
            METHODS[name](**quick).fit(data)
        except InvalidInputError as error:
            said[name] = str(error)
    sent = Sent(*unlike_beliefs(rank))
    part = Release(
        name="hop1", paid_for="sums", mechanism=Gaussian(noise_multiplier=1.0, sensitivity=1.0)
    )
    try:
        release_sums(SimpleNamespace(), part, sent)
    except InvalidInputError as error:
        said["beliefs"] = str(error)
    try:
        step_on(nn.Linear(4, 3), noise_multiplier=1.5 + rank)()
    except InvalidInputError as error:
        said["noise"] = str(error)
    for what, data in unlike_data(rank).items():
        try:
            METHODS[what.partition(",")[0]](epsilon=4.0, steps=2).fit(data)
        except InvalidInputError as error:
            said[what] = str(error)
    rows = torch.arange(8.0).view(4, 2).roll(rank, 0)
    module = nn.Linear(2, 3)
    try:
        make_private(
            module, torch.optim.SGD(module.parameters(), lr=0.1), (rows, torch.zeros(4).long()),
            sample_rate=0.5, noise_multiplier=1.0, max_grad_norm=1.0,
        )()  # fmt: skip
    except InvalidInputError as error:
        said["examples"] = str(error)
    return said


def unlike_beliefs(rank):
    """What three nodes send; one believes something else on every rank."""
    messages = incoming(torch.tensor([[0, 1], [1, 2]]), 3, seed=0)
    rows, beliefs = unit_rows(torch.eye(3)), torch.full((3, 3), 1 / 3)
    beliefs[1, 0] += rank * 1e-6
    return messages, rows, None, beliefs


def unlike_data(rank):
    """The same sizes on every rank, and other rows, or other links."""
    rolled = data_for("dp-mlp").clone()
    rolled.x = rolled.x.roll(rank, 0)
    links = split_links(edges_as_links(social_network(num_nodes=60, num_features=5, seed=1)))
    links.links = links.links.roll(2 * rank, 1)
    return {"dp-mlp, rows": rolled, "dp-link, links": links}


def sums_of(rng):
    """What 130 nodes send, in blocks of 50 receivers; the last has fewer rows than others."""
    generator = torch.Generator().manual_seed(2)
    rows = unit_rows(torch.randn(130, 40, generator=generator))
    edges = torch.randint(130, (2, 2000), generator=generator)
    messages = incoming(edges, 130, seed=0, sender_cap=3, cap="soft")
    sent = Sent(messages, rows)
    before, aggregation.ROWS_AT_ONCE = aggregation.ROWS_AT_ONCE, 50
    try:
        mechanism = Gaussian(noise_multiplier=NOISE, sensitivity=BOUND)
        return sent.sums(), sent.noisy_sums(mechanism, rng, processes.current())
    finally:
        aggregation.ROWS_AT_ONCE = before


def fixed_sums():
    """Noisy sums of a fixed stream."""
    return sums_of(secret(fixed_seed=4))[1]


def noise_of_sums():
    """The noise of fresh ones."""
    exact, noisy = sums_of(secret())
    return noisy.double() - exact


ALL = {case: functools.partial(fit, case) for case in METHOD_CASES} | {
    "noise": released_noise,
    "sums": fixed_sums,
    "noise of sums": noise_of_sums,
    "bound": learnt_bound,
    "coins": side_coins,
    "refusals": refusals,
}


# --- started as processes of their own ------------------------------------------------------------


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def plain_environment():
    """Without a word of a launcher."""
    ours = ("TORCHELASTIC", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_RANK")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    path = os.pathsep.join([str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    return clean | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def environment(rank, world, port, **more):
    names = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    plain = {key: str(value) for key, value in (names | more).items()}
    return plain_environment() | plain


def start(arguments, world=2, **more):
    """The same command as several processes."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment(rank, world, port, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


def children_of(pid):
    """The processes that a process started itself, youngest last; where /proc says so."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def main(out):
    with processes.join(60.0) as ranks:
        answers = {name: ask() for name, ask in ALL.items()}
    torch.save(answers, Path(out) / f"{ranks.rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
