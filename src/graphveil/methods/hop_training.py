"""How GAP trains and predicts, with noise in the sums or without: encoders, attention, heads.

Everything here works on rows of nodes by themselves, or on sums over neighbours that the caller
made; only :func:`sum_anew` reads edges, when a prediction is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil.grads.own_rows import RowExamples
from graphveil.graph.aggregation import Sent, unit_rows
from graphveil.graph.lazy_rows import LazyRows, map_places, map_rows, pick_rows, slices
from graphveil.graph.scratch import scratch_tensor
from graphveil.graph.stored_messages import StoredMessages
from graphveil.methods import own_row
from graphveil.methods.open_training import OpenTraining, seeded_weights
from graphveil.methods.sending import Sending, attention_terms, prepare_to_send, send
from graphveil.methods.terms import node_losses
from graphveil.nn.gap import AttentionTerms, GAPNetwork, LinearHead, SparseRows, SumHead
from graphveil.rng import seeded

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution
    from graphveil.methods.gap import GAP
    from graphveil.methods.sending import Sender

FAINTEST = -10.0  # log-probabilities below this say no more
_CLEARLY = 0.03  # by how much the loss of a less simple head must be smaller


def read_rows(method: Sender, data: Data) -> Any:
    """The rows that the network reads; in the open those of mostly zeros are sparse."""
    x = method.prepare(data)
    # Those of beliefs are, whatever they hold, which is private.
    if method.messages_in_use != "belief" and not (method.trains_openly and _is_sparse(x)):
        return x
    return x.then(SparseRows) if isinstance(x, LazyRows) else SparseRows(x)


def _is_sparse(x: Any) -> bool:
    """Whether rows are mostly zeros."""
    if isinstance(x, LazyRows):
        held = sum(int(x[some].count_nonzero()) for some in slices(len(x)))
        return held < 0.2 * x.shape[0] * x.shape[1]
    return bool((x != 0).float().mean() < 0.2)


def believe(network: GAPNetwork, x: Any, unseen: Tensor | None = None) -> Tensor:
    """Log-probabilities of every node by itself, of whose rows a block is read at a time.

    ``unseen`` is as of :meth:`GAPNetwork.log_probabilities`.
    """

    def ask(some: slice) -> Tensor:
        return network.log_probabilities(x[some], None if unseen is None else unseen[some])

    return map_places(ask, len(x))


# --- training -------------------------------------------------------------------------------------


def encode_privately(
    method: GAP, network: GAPNetwork, x: Any, data: Data, execution: Execution
) -> Tensor:
    """Train the encoder by private steps; log-probabilities of every node."""
    encoder, train = network.encoders[0], data.train_mask
    if method.messages_in_use == "belief":
        _train_first(method, encoder.linear, data, execution)
    else:
        step(method, execution, "encoder", encoder, (pick_rows(x, train), data.y[train]))
    with torch.no_grad():
        return believe(network, x)


def _train_first(method: GAP, linear: nn.Linear, data: Data, execution: Execution) -> None:
    """Train a linear classifier of own rows, and have it say no more than its noise allows."""
    recipe, facts = method.own_rows, execution.plan.facts
    part: Any = execution.plan.part("encoder")
    centre = None
    if own_row.is_centred(recipe, facts):
        centre = own_row.release_mean(recipe, execution, data)
    step(method, execution, "encoder", linear, own_row.own_terms(recipe, data, centre))
    if centre is not None:
        own_row.read_uncentred(linear, centre)
    trust = own_row.trust_in(part, part.rate * facts.num_train, own_row.row_length(recipe))
    with torch.no_grad():
        linear.weight.mul_(trust)
        linear.bias.mul_(trust)


def encode_openly(
    method: Sender, network: GAPNetwork, x: Any, data: Data, execution: Execution
) -> Tensor:
    """Train the encoders in the open, each without its fold; log-probabilities of every node."""
    train, folds = data.train_mask, len(network.encoders)
    generator = seeded(method.seed, "folds").torch_generator()
    fold = torch.randint(folds, (len(train),), generator=generator)
    # As published, steps have one length.
    how: dict[str, Any] = {} if method.paper else {"rate": lambda done: 1 - done}
    for number, encoder in enumerate(network.encoders):
        seen = train & (fold != number) if folds > 1 else train
        first = encoder.body.linears[0].weight
        rest = [weight for weight in encoder.parameters() if weight is not first]
        groups: list[dict[str, Any]] = [
            {"params": [first], "weight_decay": method.weight_decay},
            {"params": rest},
        ]
        optimizer = torch.optim.Adam(groups, lr=method.open_learning_rate)
        fit_openly(
            method, encoder, optimizer, x, data, execution, seen if seen.any() else train,
            steps=method.open_steps, batch_size=method.open_batch, every=20,
            progress=execution.progress, **how,
        )  # fmt: skip
    execution.share_weights(network)
    with torch.no_grad():
        unseen = torch.where(train, fold, -1) if folds > 1 else None
        return believe(network, x, unseen)


def step(method: GAP, execution: Execution, name: str, network: nn.Module, terms: Any) -> None:
    """Take the private steps of one part."""
    losses = node_losses(method.task(execution.plan.facts), execution.class_weights)
    execution.train(execution.plan.part(name), network, terms, losses)


def fit_openly(
    method: Sender,
    module: nn.Module,
    optimizer: Any,
    inputs: Any,
    data: Data,
    execution: Execution,
    seen: Tensor | None = None,
    **how: Any,
) -> float:
    """Train a module on rows in the open; the score of what was kept."""
    training = OpenTraining(
        seed=method.seed,
        task=method.task(execution.plan.facts),
        weights=execution.class_weights,
        by_loss=True,
        on_loss=execution.on_loss,
        **how,
    )
    return training(module, optimizer, lambda ids: module(inputs[ids]), data, seen)


def train_attention(
    method: GAP, network: GAPNetwork, hop: int, sending: Sending, data: Data, execution: Execution
) -> None:
    """Train one hop's attention on loss terms that read the messages of their own node.

    As published, every forward pass has noise on its sums, as much as the hop's release will have.
    """
    plan, noise = execution.plan, 0.0
    if method.paper:
        mechanism = plan.part(f"hop{hop + 1}").mechanism
        noise = mechanism.noise_multiplier * mechanism.sensitivity
    with seeded_weights(method.seed + 1 + hop):
        outputs = method.task(plan.facts).outputs
        trained = AttentionTerms(network.attention[hop], sending.rows.shape[1], outputs, noise)
    terms = attention_terms(sending, data, method.seed, whole=method.paper)
    step(method, execution, f"attention{hop + 1}", trained, terms)


def classify(
    method: Any,
    network: GAPNetwork,
    own: Any,
    cache: Tensor,
    data: Data,
    execution: Execution,
) -> None:
    """Train the head, in the open or by private steps, which read training nodes alone."""
    if method.trains_openly:
        classify_openly(method, network, head_inputs(method, own, cache), data, execution)
        return
    train = data.train_mask
    inputs: Any
    if isinstance(own, LazyRows):
        ids, columns = train.nonzero().flatten(), own.columns + cache[0].numel()
        inputs = LazyRows(ids, lambda some: head_inputs(method, own[some], cache[some]), columns)
    else:
        inputs = head_inputs(method, own[train], cache[train])
    terms: Any = inputs, data.y[train]
    if isinstance(network.heads[0], LinearHead):
        terms = RowExamples(*terms)
    step(method, execution, "classifier", network.heads[0], terms)


def classify_openly(
    method: Sender, network: GAPNetwork, inputs: Tensor, data: Data, execution: Execution
) -> None:
    """Train the heads in the open, and choose among them."""
    scores = []
    for head in network.heads:
        plain = isinstance(head, SumHead)
        optimizer = torch.optim.Adam(
            head.parameters(),
            lr=method.open_learning_rate * (2 if plain else 1),
            weight_decay=0.0 if plain else 0.2 * method.weight_decay,
        )
        steps = method.head_steps
        scores.append(fit_openly(method, head, optimizer, inputs, data, execution, steps=steps))
    # A sum, unless the network is clearly better: it has little to over-fit with.
    simplest = len(scores) - 1
    better = scores[0] > (1 - _CLEARLY) * scores[simplest]
    network.chosen.fill_(0 if better else simplest)
    execution.share_weights(network)


# --- what the heads read --------------------------------------------------------------------------


def own_inputs(method: Sender, network: GAPNetwork, x: Any, beliefs: Tensor | None) -> Any:
    """What the head reads of each node's own row, for :func:`head_inputs`."""
    if method.messages_in_use == "encoding":
        return unit_rows(map_rows(network.encoders[0].encode, x))
    if not method.encodes:
        return x
    return believe(network, x) if beliefs is None else beliefs


def head_inputs(method: Sender, own: Any, cache: Tensor) -> Tensor:
    """What the head reads of nodes: of their own rows (:func:`own_inputs`), then their sums.

    Every row is made by itself: some nodes may be asked for, and not the others.
    """
    if method.messages_in_use == "encoding":
        return torch.cat([own, F.normalize(cache.float(), dim=2).flatten(1)], 1)
    if method.messages_in_use == "belief":
        return _belief_inputs(method, own, cache)
    return torch.cat([own, (cache / method.cache_unit).flatten(1).float()], 1)


def _belief_inputs(method: Sender, own: Tensor, cache: Tensor) -> Tensor:
    """Own log-probabilities, own sums, sums of the own list: each of about one length."""
    own = own.clamp_min(FAINTEST)
    own = own - own.mean(1, keepdim=True)
    heard, read = (cache / method.cache_unit).float().chunk(2, 1)
    # One's own sum is one noisy row; what a list says was averaged over many.
    heard = heard / max(1.0, method.cache_unit)
    return torch.cat([own, heard.flatten(1), read.flatten(1)], 1) / LinearHead.unit


def outputs_from(method: Sender, data: Data, cache: Tensor) -> Tensor:
    """What the head makes of every node's own row and of sums that were made for it."""
    network = method.network_
    own = own_inputs(method, network, read_rows(method, data), None)

    def read(some: slice) -> Tensor:
        outputs: Tensor = network.head(head_inputs(method, own[some], cache[some]))
        return outputs

    return map_places(read, len(own))


def sum_anew(method: Sender, data: Data, total: Callable[[Sent], Tensor]) -> Tensor:
    """The sums of every hop on a graph, each as ``total`` makes it: (nodes, hops, channels)."""
    network, x = method.network_, read_rows(method, data)
    beliefs = believe(network, x) if method.encodes else None
    return sum_hops(method, network, prepare_to_send(method, network, x, data, beliefs), total)


def sum_hops(
    method: Sender, network: GAPNetwork, sending: Sending, total: Callable[[Sent], Tensor]
) -> Tensor:
    """The sums of every hop: each sends on what the last one summed."""
    cache = None
    for hop in range(method.hops_in_use):
        sent = send(method, network, hop, sending)
        sums = total(sent)
        cache = lay_up(method, cache, hop, sums, sent)
        sending = sending.onwards(sums)
    assert cache is not None
    return cache


def lay_up(method: Sender, cache: Tensor | None, hop: int, sums: Tensor, sent: Sent) -> Tensor:
    """What is kept for every node, (nodes, rows, channels), with one more ``hop``.

    That is its sum of each hop; with beliefs then for each hop what the sums of those in its own
    list say. Of a store it is kept in a file.
    """
    hops, reads_lists = method.hops_in_use, method.reads_lists
    if cache is None:
        kept = torch.float32 if reads_lists else sums.dtype
        rows = 2 * hops if reads_lists else hops
        shape = len(sums), rows, sums.shape[1]
        stored = isinstance(sent.messages, StoredMessages)
        cache = scratch_tensor(shape, kept) if stored else torch.empty(shape, dtype=kept)
    cache[:, hop] = sums
    if reads_lists:
        sent.list_sums(sums, out=cache[:, hops + hop])
    return cache
