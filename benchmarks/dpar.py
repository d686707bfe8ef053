"""DPAR: what structure is worth at a proven epsilon, and PageRank's speed.

    python benchmarks/dpar.py proven --root DATA [--json]     # proven epsilon 1 and 8
    python benchmarks/dpar.py pagerank [--json]               # 10,000 seeds on 169,343 nodes

The paper's table and figures are descriptions: graphveil bench list. Inductive 80/20 splits: the
test graph has no edge to the training graph. ``proven`` also runs what
is not in the library because it lost: rows over a graph whose senders are capped (a node changes
one entry of one row), and the same under the unit edge, where training is in the open.
"""

import argparse
import json
import math
import os
import statistics
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from unittest import mock

import numpy as np
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from graphveil.data import load
from graphveil.data.synthetic import citation_like
from graphveil.graph.caps import cap_senders
from graphveil.graph.messages import Messages
from graphveil.graph.pagerank import pagerank
from graphveil.graph.private_rows import PrivateRows
from graphveil.graph.splits import separate, split
from graphveil.mechanisms import Gaussian, largest
from graphveil.methods import DPAR, DPGNN, LateGraph
from graphveil.methods.plan import Facts
from graphveil.privacy.accounting import calibrate
from graphveil.rng import secret, seeded

DELTA = {"cora-ml": 1e-4, "cs": 1e-5}


def arranged(name, root, seed):
    return separate(split(load(name, root), (0.8, 0.0, 0.2), seed=seed))


def accuracy(method, testing):
    return float((method.predict(testing, mode="disjoint") == testing.y).float().mean())


def openly(training, messages, seed):
    """A method whose network was fitted in the open, on rows summed by ``messages``."""
    method = DPAR(epsilon=8.0, student=False, seed=seed)
    facts = Facts.of(training)
    rows = sparse.csr_array(messages.weighted(method.prepare(training)).numpy())
    train = training.train_mask.numpy()
    regression = LogisticRegression(C=0.3, max_iter=100)
    regression.fit(rows[train.nonzero()[0]], training.y.numpy()[train])
    network = method.build(facts)
    layer, known = network.convs[0].lin, torch.from_numpy(regression.classes_)
    with torch.no_grad():
        layer.bias.fill_(-1e9)
        layer.weight[known] = torch.from_numpy(regression.coef_).float()
        layer.bias[known] = torch.from_numpy(regression.intercept_).float()
    plan = method.plan(facts)
    method.restore(plan, network, list(plan.charges))
    return method


# --- at a proven epsilon --------------------------------------------------------------------------


class CappedRows:
    """Rows over a graph in which a node sends one message: it changes one entry of one row.

    Stands in for the mechanism of ``gm``: the same Gaussian costs as much, of sensitivity 1 for all
    rows together.
    """

    def __init__(self, **settings):
        self.method = DPAR(**settings)

    def fit(self, training):
        nodes = len(training.x)
        source, target = cap_senders(training.edge_index, nodes, 1, seed=self.method.seed).numpy()
        ones = np.ones(len(source))
        scores = sparse.csr_array((ones, (target, source)), shape=(nodes, nodes))
        rows = (
            seeded(self.method.seed, "rows")
            .generator()
            .permutation(training.train_mask.nonzero().flatten().numpy())
        )

        def release(chooser, _, rng):
            mechanism = Gaussian(noise_multiplier=chooser.noise_multiplier, sensitivity=1.0)
            chosen = noisy_choice(scores[rows[: chooser.rows]], mechanism, chooser.k, rng)
            return chosen, np.full(chosen.shape, 1 / chooser.k)

        with mock.patch.object(PrivateRows, "release", release):
            return self.method.fit(training)


def noisy_choice(scores, mechanism, k, rng):
    rows, nodes = scores.shape
    chosen, at_once = np.empty((rows, k), np.int64), max(1, 2**22 // nodes)
    for start in range(0, rows, at_once):
        dense = scores[start : start + at_once].toarray()
        noisy = mechanism.release(dense, rng, block_of=rows * nodes)
        chosen[start : start + at_once] = largest(noisy, k)
    return chosen


def edge_rows(training, testing, epsilon, delta, seed, structured):
    """Unit edge: features and labels are public, training is open, noisy rows are all there is."""
    nodes = len(training.x)
    own, edges = torch.ones(nodes), torch.empty(2, 0, dtype=torch.long)
    if structured:
        source, target = cap_senders(training.edge_index, nodes, None, seed=seed).numpy()
        scores = sparse.csr_array((np.ones(len(source)), (target, source)), shape=(nodes, nodes))
        noise = calibrate(
            lambda z: Gaussian(noise_multiplier=z, sensitivity=math.sqrt(2)).event(),
            epsilon=epsilon, delta=delta, safe=1e6, risky=1e-3,
        )  # fmt: skip
        mechanism = Gaussian(noise_multiplier=noise, sensitivity=math.sqrt(2))
        chosen = torch.from_numpy(noisy_choice(scores, mechanism, 2, secret()))
        receivers = torch.arange(nodes).unsqueeze(1).expand_as(chosen)
        kept = chosen != receivers
        own, edges = torch.full((nodes,), 0.5), torch.stack([chosen[kept], receivers[kept]])
    messages = Messages(edges, torch.full((edges.shape[1],), 0.25), own)
    return accuracy(openly(training, messages, seed), testing)


def proven_ways(num_train):
    few = {"variant": "gm", "rows": 70}
    many = {"variant": "gm", "rows": num_train}
    return {
        "dpar (default)": (DPAR, {}),
        "features, no structure at all": (
            DPAR,
            {"variant": "features", "smoothing_steps": 0, "student": False},
        ),
        "without the student": (DPAR, {"student": False}),
        "gm, M = 70": (DPAR, few),
        "em0, M = 70": (DPAR, few | {"variant": "em0"}),
        "em1, M = 70": (DPAR, few | {"variant": "em1"}),
        "gm, M = all": (DPAR, many),
        "em0, M = all": (DPAR, many | {"variant": "em0"}),
        "capped rows, M = all": (CappedRows, many),
        "capped messages (dp-gnn, K = 1)": (DPGNN, {}),
        "late-graph": (LateGraph, {}),
    }


def proven_rows(name, root, epsilon, seeds, only):
    data = {seed: arranged(name, root, seed) for seed in seeds}
    num_train = int(next(iter(data.values()))[0].train_mask.sum())
    for label, (kind, settings) in proven_ways(num_train).items():
        if only and not any(each in label for each in only):
            continue
        found, proven = [], 0.0
        for seed, (training, testing) in data.items():
            method = kind(epsilon=epsilon, delta=DELTA[name], seed=seed, **settings).fit(training)
            found.append(accuracy(method, testing))
            proven = max(proven, method.certificate_.guarantee.epsilon)
        yield label, {"proven_epsilon": proven, **summary(found)}
    for label, structured in (("edge unit, no rows", False), ("edge unit, noisy rows", True)):
        if only and not any(each in label for each in only):
            continue
        found = [
            edge_rows(*data[seed], epsilon, DELTA[name] / 10, seed, structured) for seed in seeds
        ]
        yield label, {"proven_epsilon": epsilon if structured else 0.0, **summary(found)}


# --- speed ----------------------------------------------------------------------------------------


def speed(seeds=10_000):
    data = citation_like()
    order = np.random.default_rng(0).permutation(data.num_nodes)[:seeds]
    result = {"nodes": data.num_nodes, "edges": data.num_edges, "seeds": seeds}
    for how in ("ista", "push"):
        start = time.perf_counter()
        rows = pagerank(data.edge_index, data.num_nodes, torch.from_numpy(order), how=how)
        result[f"{how}_seconds"] = time.perf_counter() - start
        result[f"{how}_entries_a_row"] = rows.nnz / seeds
    return result


def summary(found):
    return {
        "accuracy": statistics.fmean(found),
        "deviation": statistics.stdev(found) if len(found) > 1 else 0.0,
        "seeds": len(found),
    }


def said(name, label, row):
    return (
        f"{name:8s} {label:32s} proven {row['proven_epsilon']:8.4g}  "
        f"{100 * row['accuracy']:5.1f} +- {100 * row['deviation']:.1f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("proven", "pagerank"))
    parser.add_argument("--root", help="folder with raw data")
    parser.add_argument("--data", nargs="*", default=list(DELTA), choices=list(DELTA))
    parser.add_argument("--epsilon", nargs="*", type=float, default=[8.0, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="labels of 'proven' that hold one of these words")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows = []

    def note(name, label, row):
        rows.append({"data": name, "way": label, **row})
        if not options.json:
            print(said(name, label, row), flush=True)

    if options.what == "pagerank":
        result = speed()
        print(json.dumps(result) if options.json else result)
        return
    for name in options.data:
        for epsilon in options.epsilon:
            for label, row in proven_rows(name, options.root, epsilon, seeds, options.only):
                note(name, label, row)
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
