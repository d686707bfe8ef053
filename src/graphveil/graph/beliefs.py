"""Beliefs about the classes of nodes, passed on to their neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from graphveil.graph.lazy_rows import map_rows, slices

if TYPE_CHECKING:
    from graphveil.graph.messages import Messages
    from graphveil.graph.stored_messages import StoredMessages


def pass_beliefs(
    own: Tensor,
    log_prior: Tensor,
    messages: Messages | StoredMessages,
    rounds: int,
    likeness: float,
) -> Tensor:
    r"""Log-beliefs (nodes, classes) after hearing one's neighbours ``rounds`` times.

    ``own`` are log-probabilities from each node's own row, ``log_prior`` those of the classes
    before any row was read. Let a neighbour have the same class with probability ``likeness``, and
    else any by the prior. A neighbour that believes q then multiplies the odds of a class c by

        1 - likeness + likeness * q_c / prior_c,

    which counts what it knows beyond the prior, and no more than the graph's likeness bears out.
    The logarithms of a node's n neighbours are added and divided by sqrt(n): neighbours know much
    of the same, so that n of them are worth more than their mean, and less than their sum. Weights
    of ``messages`` are not read.

    *Guarantee*: none. Rows within ``rounds`` steps are read in the open.
    """
    import torch

    heard = messages.in_degree.clamp_min(1).to(own.dtype).sqrt().unsqueeze(1)

    def weigh_evidence(beliefs: Tensor) -> Tensor:
        beyond = (beliefs.log_softmax(-1) - log_prior).exp()
        evidence = torch.log1p(likeness * (beyond - 1)).nan_to_num(0.0)  # overflown: nothing said
        return evidence.flatten(1)

    beliefs = own
    for _ in range(rounds):
        # Three such matrices at most: of a large graph each is as large as what is asked for.
        evidence = map_rows(weigh_evidence, beliefs)
        del beliefs
        beliefs = messages.total(evidence)
        del evidence
        beliefs = beliefs.div_(heard).view_as(own)
        for some in slices(len(own)):
            beliefs[some] += own[some]
    return beliefs


def pass_label_beliefs(
    own: Tensor,
    prior: Tensor,
    messages: Messages | StoredMessages,
    rounds: int,
    likeness: float,
) -> Tensor:
    """Log-odds (nodes, labels) after hearing one's neighbours: each label is two classes.

    ``own`` are log-odds from each node's own row, ``prior`` those before any row was read.

    *Guarantee*: none. Rows within ``rounds`` steps are read in the open.
    """
    import torch
    from torch.nn import functional as F

    def two_classes(odds: Tensor) -> Tensor:
        return torch.stack([F.logsigmoid(-odds), F.logsigmoid(odds)], -1)

    passed = pass_beliefs(two_classes(own), two_classes(prior), messages, rounds, likeness)
    return passed[..., 1] - passed[..., 0]


def pass_value_beliefs(
    own: Tensor,
    known: Tensor,
    messages: Messages | StoredMessages,
    rounds: int,
    likeness: float,
) -> Tensor:
    r"""Values (nodes, 1) after hearing one's neighbours ``rounds`` times.

    ``own`` are answers from each node's own row. ``known`` are the mean m and the variance s of
    values before any row was read, and the mean squared error e of answers. Let a neighbour's value
    be correlated by ``likeness`` r, all normal. Own rows say y_i ~ N(own, e). A neighbour that
    believes N(b, v) says y_i ~ N(m + r (b - m), w) with w = r^2 v + (1 - r^2) s. What that is
    beyond the prior N(m, s) is a precision 1/w - 1/s; a node adds those of its n neighbours,
    divided by sqrt(n), as for classes.

    *Guarantee*: none. Rows within ``rounds`` steps are read in the open.
    """
    import torch

    mean, spread, error = known.double().tolist()
    error = min(error, 0.999 * spread)
    heard = messages.in_degree.clamp_min(1).double().sqrt()
    apart = (own.double().squeeze(1) - mean).nan_to_num(0.0)
    beliefs, variance = apart, torch.full_like(apart, error)
    for _ in range(rounds):
        wide = likeness**2 * variance + (1 - likeness**2) * spread
        evidence = torch.stack([likeness * beliefs / wide, 1 / wide - 1 / spread], 1)
        pulled, surer = (messages.total(evidence) / heard.unsqueeze(1)).unbind(1)
        variance = 1 / (1 / error + surer)
        beliefs = (apart / error + pulled) * variance
    return (mean + beliefs).unsqueeze(1).to(own.dtype)
