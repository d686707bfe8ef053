"""Beliefs about the classes of nodes, passed on to their neighbours."""

from __future__ import annotations

from torch import Tensor

from graphveil.graph.messages import Messages


def pass_beliefs(
    own: Tensor, log_prior: Tensor, edges: Tensor, rounds: int, likeness: float
) -> Tensor:
    r"""Log-beliefs (nodes, classes) after hearing one's neighbours ``rounds`` times.

    ``own`` are log-probabilities from each node's own row, ``log_prior`` those of the classes
    before any row was read. Let a neighbour have the same class with probability ``likeness``, and
    else any by the prior. A neighbour that believes q then multiplies the odds of a class c by

        1 - likeness + likeness * q_c / prior_c,

    which counts what it knows beyond the prior, and no more than the graph's likeness bears out.
    The logarithms of a node's n neighbours are added and divided by sqrt(n): neighbours know much
    of the same, so that n of them are worth more than their mean, and less than their sum.

    *Guarantee*: none. Rows within ``rounds`` steps are read in the open.
    """
    import torch

    nodes = len(own)
    heard = torch.bincount(edges[1], minlength=nodes).clamp_min(1).to(own.dtype)
    messages = Messages(edges, torch.ones(edges.shape[1]), torch.zeros(nodes))
    beliefs = own
    for _ in range(rounds):
        beyond = (beliefs.log_softmax(-1) - log_prior).exp()
        evidence = torch.log1p(likeness * (beyond - 1)).nan_to_num(0.0)  # overflown: nothing said
        total = messages.total(evidence.flatten(1)) / heard.sqrt().unsqueeze(1)
        beliefs = own + total.view_as(own)
    return beliefs


def pass_label_beliefs(
    own: Tensor, prior: Tensor, edges: Tensor, rounds: int, likeness: float
) -> Tensor:
    """Log-odds (nodes, labels) after hearing one's neighbours: each label is two classes.

    ``own`` are log-odds from each node's own row, ``prior`` those before any row was read.

    *Guarantee*: none. Rows within ``rounds`` steps are read in the open.
    """
    import torch
    from torch.nn import functional as F

    def two_classes(odds: Tensor) -> Tensor:
        return torch.stack([F.logsigmoid(-odds), F.logsigmoid(odds)], -1)

    passed = pass_beliefs(two_classes(own), two_classes(prior), edges, rounds, likeness)
    return passed[..., 1] - passed[..., 0]
