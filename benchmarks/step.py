"""What privacy costs a training step: ours, plain, Opacus and the textbook ways, in one process.

    python benchmarks/step.py [--quick] [--threads N] [--json]

Three workloads: one layer (10,000 roots of 169,343 nodes, 128 features, at most 10 messages each
way), two hops (1,000 roots of the same graph), and graph classification (250 graphs of 20 nodes,
hidden width 256 and 1024; without --quick also 512). Every way is given the same batch, already
looked up, and does everything else of a step: gradients, clipping, noise, optimiser.

The rooted network is as in the node-level paper and its released settings: width 100, tanh, one
layer to encode, two to decode. The plain step is as fast as we can make one: it encodes every node
once, aggregates by embedding_bag, and convolves only where a root needs it. It and ours take turns,
then ours and the others do, and the median of their CPU times counts, by default of one thread
each: with several, a thread that is woken for a small operation or waits for another is counted as
if it worked, which on two cores adds a quarter to a half, most to the quickest. (Opacus leaves the
allocator's thresholds raised, which spares the plain step its page faults, so it comes last.)
Figures are ratios, since machines differ. Peak memory is what the process grows by during one step.
The naive loop and vmap run on a part of the batch and are scaled up. `max_relative_error` compares
our clipped sum with per-example autograd in float64.
"""

import argparse
import contextlib
import copy
import ctypes
import json
import os
import statistics
import time
import warnings
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads would be counted as work

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from graphveil.grads import ClippedSum, Flat, make_private
from graphveil.graph.blocks import Numbered
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import Rooted, RootedTerms, gather_neighbourhoods, reach
from graphveil.nn import GraphClassifier, NodeClassifier

NODES, FEATURES, CLASSES, HIDDEN, CAP = 169_343, 128, 40, 100, 10
CLIP, NOISE = 0.5, 1.0
MAIN = ("plain", "private")


class Prebuilt:
    """Examples whose batch is at hand, so that looking it up is not timed."""

    def __init__(self, count, batches):
        self.count, self.prebuilt = count, batches

    def __len__(self):
        return self.count

    def batches(self, drawn):
        return self.prebuilt


# --- rooted neighbourhoods ------------------------------------------------------------------------


def citation_graph():
    """Random messages, at most CAP from and to each node; heavy-tailed like a citation graph."""
    generator = torch.Generator().manual_seed(0)
    sent = torch.randint(0, CAP + 1, (NODES,), generator=generator)
    source = torch.repeat_interleave(torch.arange(NODES), sent)
    target = torch.randint(0, NODES, (len(source),), generator=generator)
    order = torch.argsort(target)
    source, target = source[order], target[order]
    start = torch.searchsorted(target, torch.arange(NODES))
    kept = torch.arange(len(target)) - start[target] < CAP
    kept &= source != target
    messages = weigh_messages(torch.stack([source[kept], target[kept]]).unique(dim=1), NODES)
    x = torch.randn(NODES, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (NODES,), generator=generator)
    return x, y, messages


def rooted_workload(graph, hops, roots):
    x, y, messages = graph
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randperm(NODES, generator=generator)[:roots]
    chosen = chosen[torch.argsort(reach(messages, hops)[chosen])]
    torch.manual_seed(0)
    module = NodeClassifier(
        FEATURES, HIDDEN, CLASSES, "gcn", hops, encoder_layers=1, decoder_layers=2
    )
    terms = RootedTerms(x, y, messages, torch.arange(NODES), hops, side_by_side=True)
    batches = list(terms.batches(chosen))
    whole = (gather_neighbourhoods(x, messages, chosen, hops), y[chosen])
    return {
        "module": module,
        "losses": rooted_losses,
        "batches": batches,
        "whole": whole,
        "plain": plain_rooted(module, x, y, messages, chosen, hops),
        "slice": slice_rooted,
        "count": roots,
    }


def rooted_losses(module, batch):
    around, labels = batch
    return F.cross_entropy(module(around), labels, reduction="none")


def slice_rooted(batch, part):
    around, labels = batch
    parts = (around.index[part], around.weight[part], around.mask[part])
    return Rooted(around.table, *parts, around.widths), labels[part]


def plain_rooted(module, x, y, messages, roots, hops):
    """Every node once: what a message-passing library does without per-example gradients."""
    needed, levels = roots, []
    for _ in range(hops):
        reached = messages.in_degree[needed]
        offsets = F.pad(torch.cumsum(reached, 0), (1, 0))
        place = torch.arange(int(offsets[-1])) - torch.repeat_interleave(offsets[:-1], reached)
        edges = torch.repeat_interleave(messages.start[needed], reached) + place
        below, index = torch.unique(
            torch.cat([needed, messages.senders[edges]]), return_inverse=True
        )
        own, senders = index[: len(needed)], index[len(needed) :]
        weights = messages.weights[edges]
        levels.append((own, messages.self_weight[needed], senders, weights, offsets))
        needed = below

    def losses():
        h = x[needed]
        h = module.after[0](module.encoder(h))
        pairs = zip(module.convs, module.after[1:], reversed(levels), strict=True)
        for conv, after, (own, self_weight, senders, weights, offsets) in pairs:
            total = F.embedding_bag(
                senders, h, offsets, mode="sum", per_sample_weights=weights,
                include_last_offset=True,
            )  # fmt: skip
            h = after(conv.lin(h[own] * self_weight.unsqueeze(1) + total))
        return F.cross_entropy(module.decoder(h), y[roots], reduction="sum")

    return losses


# --- graphs ---------------------------------------------------------------------------------------


class DenseGCN(nn.Module):
    """The same network on padded graphs with dense adjacency, the only layout Opacus can take."""

    def __init__(self, module):
        super().__init__()
        self.convs = nn.ModuleList(copy.deepcopy(conv.lin) for conv in module.convs)
        self.head = copy.deepcopy(module.head)

    def forward(self, x, adjacency):
        for conv in self.convs:
            x = torch.tanh(conv(adjacency @ x))
        return self.head(x.mean(1))


def graph_workload(width, graphs=250, nodes=20, features=9):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(graphs, nodes, features, generator=generator)
    y = torch.randint(0, 2, (graphs,), generator=generator)
    linked = (torch.rand(graphs, nodes, nodes, generator=generator) < 0.25).triu(1)
    linked = linked | linked.transpose(1, 2)
    graph, receiver, sender = linked.nonzero().t()
    edges = torch.stack([graph * nodes + sender, graph * nodes + receiver])
    owner = torch.arange(graphs).repeat_interleave(nodes)
    torch.manual_seed(0)
    module = GraphClassifier(features, width, 2, "gcn", 3, pool="mean")
    whole = (x.flatten(0, 1), edges, owner, graphs, y)

    batches = []
    for start in range(0, graphs, 64):
        stop = min(start + 64, graphs)
        inside = (graph >= start) & (graph < stop)
        rows = slice(start * nodes, stop * nodes)
        parts = (
            whole[0][rows], edges[:, inside] - start * nodes, owner[rows] - start,
            stop - start, y[start:stop],
        )  # fmt: skip
        batches.append(Numbered(parts, torch.arange(start, stop)))

    messages = weigh_messages(edges, graphs * nodes, module.normalisation)
    adjacency = torch.diag_embed(messages.self_weight.view(graphs, nodes))
    adjacency[graph, receiver, sender] = messages.weight
    dense = DenseGCN(module)
    return {
        "module": module,
        "losses": graph_losses,
        "batches": batches,
        "whole": whole,
        "plain": lambda: graph_losses(module, whole).sum(),
        "padded": (dense, dense_losses, (x, adjacency, y)),
        "slice": lambda batch, part: tuple(value[part] for value in batch),
        "count": graphs,
    }


def graph_losses(module, batch):
    *inputs, labels = batch
    return F.cross_entropy(module(*inputs), labels, reduction="none")


def dense_losses(module, batch):
    x, adjacency, labels = batch
    return F.cross_entropy(module(x, adjacency), labels, reduction="none")


# --- the ways -------------------------------------------------------------------------------------


def ways(work, quick):
    """A function for each way to take a step, and by how much to scale its time up."""
    module, losses, count = work["module"], work["losses"], work["count"]
    padded, padded_losses, padded_batch = work.get("padded", (module, losses, work["whole"]))
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)

    def plain():
        work["plain"]().backward()
        optimizer.step()
        optimizer.zero_grad()

    private = make_private(
        module, optimizer, Prebuilt(count, work["batches"]), sample_rate=1.0,
        noise_multiplier=NOISE, max_grad_norm=CLIP, losses=losses,
    )  # fmt: skip
    few = min(count, 8 if quick else 64)
    some = min(count, 32 if quick else 256)
    return {
        "plain": (plain, 1),
        "private": (private, 1),
        "opacus_hooks": (opacus_hooks(padded, padded_losses, padded_batch), 1),
        "opacus_ghost": (opacus_ghost(padded, padded_losses, padded_batch), 1),
        "vmap": (
            by_vmap(padded, padded_losses, work["slice"](padded_batch, slice(0, some))),
            count / some,
        ),
        "naive": (
            naive(
                padded, padded_losses, work["slice"], padded_batch, range(0, count, count // few)
            ),
            count / len(range(0, count, count // few)),
        ),
    }


def opacus_hooks(module, losses, batch):
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(copy.deepcopy(module), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1e-6), noise_multiplier=NOISE,
        max_grad_norm=CLIP, expected_batch_size=len(batch[-1]), loss_reduction="sum",
    )  # fmt: skip

    def step():
        losses(wrapped, batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus_ghost(module, losses, batch):
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        copy.deepcopy(module), loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-6)

    def step():
        each = losses(wrapped, batch)
        each.sum().backward(retain_graph=True)
        optimizer.zero_grad()
        factors = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        (factors * each).sum().backward()
        wrapped.enable_hooks()
        for parameter in wrapped.parameters():
            parameter.grad += NOISE * CLIP * torch.randn_like(parameter)
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_vmap(module, losses, batch):
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    flat, rebuild = flattened(batch)

    def loss(values, example):
        def call(*inputs):
            return functional_call(module, values, inputs)

        return losses(call, rebuild([value.unsqueeze(0) for value in example]))[0]

    def step():
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for start in range(0, len(flat[0]), 64):
            gradients = vmap(grad(loss), in_dims=(None, 0))(
                parameters, [value[start : start + 64] for value in flat]
            )
            squares = sum((g * g).flatten(1).sum(1) for g in gradients.values())
            factors = (CLIP * squares.rsqrt()).clamp(max=1.0)
            for name, gradient in gradients.items():
                total[name] += torch.tensordot(factors, gradient, dims=1)
        return total

    return step


def flattened(batch):
    """The tensors of a batch with the examples first, and how to put them together again."""
    if not isinstance(batch[0], Rooted):
        return list(batch), lambda values: tuple(values)
    around, labels = batch

    def rebuild(values):
        *parts, labels = values
        return Rooted(around.table, *parts, around.widths), labels

    return [around.index, around.weight, around.mask, labels], rebuild


def naive(module, losses, take, batch, indices):
    def step():
        total = [torch.zeros_like(p) for p in module.parameters()]
        for i in indices:
            loss = losses(module, take(batch, slice(i, i + 1)))[0]
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            norm = torch.sqrt(sum((g * g).sum() for g in gradients))
            factor = min(1.0, CLIP / float(norm))
            total = [t + factor * g for t, g in zip(total, gradients, strict=True)]
        return total

    return step


# --- measuring ------------------------------------------------------------------------------------


def cpu_seconds(step):
    start = time.process_time()
    step()
    return time.process_time() - start


def peak_mib(step):
    """What the process grows by, at most, while it takes one step (Linux)."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / 1024


def _status(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise KeyError(key)


def relative_error(work, examples):
    """Our clipped sum in float32 against per-example autograd in float64, on a few examples."""
    module, losses = work["module"], work["losses"]
    batch = first_examples(work, examples)
    found = ClippedSum(module, losses, Flat(CLIP))([batch])
    padded, padded_losses, padded_batch = work.get("padded", (module, losses, work["whole"]))
    exact = copy.deepcopy(padded).double()
    part = work["slice"](padded_batch, slice(0, examples))
    if isinstance(part[0], Rooted):
        around = part[0]
        exactly = replace(around, table=around.table.double(), weight=around.weight.double())
        part = (exactly, part[1])
    else:
        part = tuple(value.double() if value.is_floating_point() else value for value in part)
    wanted = naive(exact, padded_losses, work["slice"], part, range(examples))()
    pairs = zip(found.values(), wanted, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def first_examples(work, examples):
    if "padded" not in work:
        return work["slice"](work["whole"], slice(0, examples))
    x, edges, owner, _, labels = work["whole"]
    rows = owner < examples
    inside = edges[0] < int(rows.sum())
    return x[rows], edges[:, inside], owner[rows], examples, labels[:examples]


def median_seconds(steps, names, turns):
    """CPU time of each of the steps called ``names``, which take turns."""
    times = {name: [] for name in names}
    for _ in range(turns):
        for name in names:
            step, scale = steps[name]
            times[name].append(scale * cpu_seconds(step))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(work, quick):
    error = relative_error(work, 8 if quick else 64)  # before steps move the weights
    steps = ways(work, quick)
    # The two that matter most get as many turns as fit in a few seconds, an odd number of them.
    once = sum(cpu_seconds(steps[name][0]) for name in MAIN)  # warms up, too
    turns = 2 * min(7, int((1.5 if quick else 12) / once / 2)) + 1
    seconds = median_seconds(steps, MAIN, turns)
    # The others take turns with ours, so that a slow moment of the machine is a slow one for both.
    others = [name for name in steps if name != "plain"]
    against = median_seconds(steps, others, 1 if quick else 3)
    memory = {name: peak_mib(steps[name][0]) for name in MAIN}
    return {
        "private_over_plain": seconds["private"] / seconds["plain"],
        "opacus_hooks_over_private": against["opacus_hooks"] / against["private"],
        "opacus_ghost_over_private": against["opacus_ghost"] / against["private"],
        "vmap_over_private": against["vmap"] / against["private"],
        "naive_over_private": against["naive"] / against["private"],
        "memory_over_plain": memory["private"] / max(memory["plain"], 1.0),
        "max_relative_error": error,
        "plain_cpu_seconds": seconds["plain"],
        "plain_mib": memory["plain"],
        "private_mib": memory["private"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, within 45 s")
    parser.add_argument("--threads", type=int, default=1, help="threads of each way (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    results = {}
    graph = citation_graph()
    results["one_layer"] = measure(rooted_workload(graph, 1, 10_000), options.quick)
    results["two_hop"] = measure(rooted_workload(graph, 2, 1_000), options.quick)
    del graph
    for width in (256, 1024) if options.quick else (256, 512, 1024):
        results[f"graphs_{width}"] = measure(graph_workload(width), options.quick)
    if options.json:
        print(json.dumps(results))
        return
    names = list(next(iter(results.values())))
    print(f"{'':28s}" + "".join(f"{workload:>14s}" for workload in results))
    for name in names:
        row = "".join(f"{result[name]:14.3g}" for result in results.values())
        print(f"{name:28s}{row}")


if __name__ == "__main__":
    main()
