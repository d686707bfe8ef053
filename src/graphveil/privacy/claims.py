r"""What the papers claim: their formulas as published, each beside what can be proven.

Nothing here is a guarantee. The figures are what the five papers, and GAP, print for a setting;
graphveil shows them as ``claimed`` and charges for something else. One function for each paper
(three for DPAR: the whole, its rows and its steps), with the equation in its docstring;
:data:`CLAIMS` lists them by the name the command line uses.

>>> claim = igamberdiev(noise_multiplier=48.0, steps=2000, splits=1, delta=1e-5)
>>> round(claim.claimed_epsilon, 2), round(claim.proven_epsilon, 2)
(4.91, 9.17)

What is proven is always under graphveil's relation, one unit withheld, and assumes gradients
clipped as one vector; ``proven_note`` says what else. C is the clipping bound of one loss term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import dp_accounting as dpa
import numpy as np
from scipy import special, stats

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.privacy import events, formulas
from graphveil.privacy.accounting import amplify, epsilon_of
from graphveil.privacy.events import composed, repeated
from graphveil.privacy.formulas import RowNoise, classic, sampled_rdp
from graphveil.privacy.guarantee import Claimed, round_up

HOLDS = "holds"

_NOISE = "[0.01, 1e9]"  # further out squares and integrals overflow; no paper comes near


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One paper's epsilon for one setting, and the epsilon such a run really has.

    ``flaw`` is :data:`HOLDS` where the published formula is a proof. ``as_run`` says what the paper
    or its released code does otherwise than the formula takes for granted, where we have seen it.
    ``further`` are other readings of the claim, by name, and as little proven. ``proven`` is the
    event that prices the run, None where there is none; ``proven_epsilon`` is its price at
    ``delta``, and cannot be given otherwise. ``proven_note`` says what it assumes of the run.

    *Guarantee.* None. ``proven_epsilon`` is one for runs that are as ``proven_note`` says.
    """

    paper: str
    method: str
    claimed_epsilon: float
    delta: float | None
    formula: str
    flaw: str
    proven: dpa.DpEvent | None
    proven_note: str
    as_run: str | None = None
    further: Mapping[str, float] = field(default_factory=dict)
    proven_epsilon: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.proven is not None:
            assert self.delta is not None
            object.__setattr__(self, "proven_epsilon", epsilon_of(self.proven, self.delta))

    def on_certificate(self, flaw: str | None = None) -> Claimed:
        """As it stands beside a proven epsilon; ``flaw`` replaces the claim's own."""
        return Claimed(
            epsilon=self.claimed_epsilon,
            source=self.paper,
            why_it_differs=self.flaw if flaw is None else flaw,
        )


# --- node level, whole networks -------------------------------------------------------------------


def daigavane(
    *, nodes: int, batch: int, max_degree: int, noise_ratio: float, steps: int, delta: float
) -> Claim:
    r"""Node-level DP-GNN, one layer: Theorem 1, with degrees bounded by K = ``max_degree``.

        gamma(alpha) = 1 / (alpha - 1) ln E exp(alpha (alpha - 1) 2 rho^2 C^2 / sigma^2),
        rho ~ Hypergeometric(nodes, K + 1, batch)
        epsilon = min over alpha of steps gamma(alpha) + ln(1 / delta) / (alpha - 1)

    ``nodes`` are the training nodes; ``noise_ratio`` is the paper's sigma / (2 (K + 1) C).
    """
    nodes = _validate.integer("nodes", nodes, "[2, 1e12]")
    batch = _validate.integer("batch", batch, f"[1, {nodes}]")
    max_degree = _validate.integer("max_degree", max_degree, f"[0, {min(nodes - 1, 10_000)}]")
    noise_ratio = _validate.number("noise_ratio", noise_ratio, _NOISE)
    steps = _validate.integer("steps", steps, "[1, 1e12]")
    delta = _validate.number("delta", delta, "(0, 1)")
    noise = 2 * (max_degree + 1) * noise_ratio
    fixed_size = events.RevealedCountGaussianDpEvent(
        noise_multiplier=noise, removed=1, altered=max_degree, population=nodes, batch=batch
    )
    poisson = events.SampledGaussianDpEvent(
        rate=batch / nodes, noise_multiplier=noise, removed=1, altered=max_degree
    )
    fixed_epsilon = epsilon_of(repeated(fixed_size, steps), delta)
    return Claim(
        paper="Daigavane et al. 2021, arXiv 2111.15521",
        method="daigavane",
        claimed_epsilon=daigavane_epsilon(nodes, batch, max_degree, noise, steps, delta),
        delta=delta,
        formula="Theorem 1: RDP with a hypergeometric number of changed terms, 2C for each",
        flaw="The paper's sampler (Algorithm 2) bounds both ends of an edge in one shared pass, so "
        "removing a node shifts the choices of nodes far away: more than max_degree + 1 terms "
        "change.",
        proven=repeated(poisson, steps),
        proven_note="The same noise, but Poisson batches at rate batch/nodes, and each node sends "
        "at most max_degree messages, chosen from its own list. Fixed-size batches with that cap: "
        f"epsilon {round_up(fixed_epsilon)}. The paper's own sampler has no proven epsilon.",
    )


def daigavane_epsilon(
    nodes: int, batch: int, max_degree: int, noise: float, steps: int, delta: float
) -> float:
    """Theorem 1 alone, for noise of standard deviation ``noise`` times the clipping bound."""
    rho = np.arange(max_degree + 2)
    log_weights = stats.hypergeom(nodes, max_degree + 1, batch).logpmf(rho)

    def gamma(order: float) -> float:
        exponents = log_weights + order * (order - 1) * 2 * rho**2 / noise**2
        return steps * float(special.logsumexp(exponents)) / (order - 1)

    return classic(gamma, delta)


def igamberdiev(*, noise_multiplier: float, steps: int, splits: int, delta: float) -> Claim:
    r"""Graph splits for text: the moments accountant behind Table 3, with sensitivity C.

        A(alpha) = E_{z ~ N(0, sigma^2)} (1 - q + q exp((2 z - 1) / (2 sigma^2)))^alpha
        epsilon = min over alpha = 2, ..., 33 of (steps ln A(alpha) + ln(1 / delta)) / (alpha - 1)

    with q = 1 / ``splits`` and sigma = ``noise_multiplier``: moments alpha - 1 from 1 to 32. One
    split is the whole graph as one loss term.
    """
    noise = _validate.number("noise_multiplier", noise_multiplier, _NOISE)
    steps = _validate.integer("steps", steps, "[1, 1e12]")
    splits = _validate.integer("splits", splits, "[1, 1e12]")
    delta = _validate.number("delta", delta, "(0, 1)")
    claimed = igamberdiev_epsilon(noise, steps, splits, delta)
    q = 1 / splits
    step = events.SampledGaussianDpEvent(rate=q, noise_multiplier=noise, removed=0, altered=1)
    note = (
        "The whole graph is one loss term: each step is a Gaussian of multiplier "
        "noise_multiplier / 2."
        if splits == 1
        else "Groups drawn up without looking at the data, edges between them cut, each group "
        "drawn at every step with probability 1/splits by a secret coin of its own. Groups "
        "visited in turn get no amplification."
    )
    return Claim(
        paper="Igamberdiev and Habernal 2022, arXiv 2102.09604",
        method="igamberdiev",
        claimed_epsilon=claimed,
        delta=delta,
        formula="Moments accountant with moments 1 to 32, sensitivity C, sampling rate 1/splits",
        flaw="Withholding a node alters its group's clipped gradient instead of removing it: the "
        "sum moves by up to 2C, not C.",
        proven=repeated(step, steps),
        proven_note=note,
        as_run=(_LEFT_IN if splits > 1 else "") + _NEVER_CLIPPED,
    )


def igamberdiev_epsilon(noise: float, steps: int, splits: int, delta: float) -> float:
    """The paper's epsilon by the formula of :func:`igamberdiev`, without its proven price."""
    return min(
        steps * sampled_rdp(1 / splits, noise, order) - math.log(delta) / (order - 1)
        for order in range(2, 34)
    )


_LEFT_IN = (
    "The paper masks the loss and leaves the edges between groups in, so that a node alters the "
    "terms of other groups, too. Its code visits the groups in turn, which is no sampling. "
)
_NEVER_CLIPPED = (
    "In the released code (trusthlt/privacy-preserving-gcn) clipping has no effect, as it is given "
    "copies that have no gradient: nothing bounds the sum, and nothing is proven for such a run."
)


# --- whole graphs ---------------------------------------------------------------------------------


def mueller(*, graphs: int, batch: int, noise_multiplier: float, steps: int, delta: float) -> Claim:
    r"""Graph classification: what Opacus's RDP accountant prints at its default orders.

        epsilon = min over alpha of steps ln A(alpha) / (alpha - 1) + ln(1 - 1 / alpha)
                                    - ln(delta alpha) / (alpha - 1)

    with A as in :func:`igamberdiev` and q = batch / graphs; the conversion is the one of Balle et
    al. (2020), tighter than the classic one.
    """
    graphs = _validate.integer("graphs", graphs, "[1, 1e12]")
    batch = _validate.integer("batch", batch, f"[1, {graphs}]")
    noise = _validate.number("noise_multiplier", noise_multiplier, _NOISE)
    steps = _validate.integer("steps", steps, "[1, 1e12]")
    delta = _validate.number("delta", delta, "(0, 1)")
    orders = formulas.OPACUS_ORDERS
    rdp = steps * np.array([sampled_rdp(batch / graphs, noise, order) for order in orders])
    epsilons = rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    step = events.SampledGaussianDpEvent(
        rate=batch / graphs, noise_multiplier=noise, removed=1, altered=0
    )
    return Claim(
        paper="Mueller et al. 2022, arXiv 2202.02575",
        method="mueller",
        claimed_epsilon=max(0.0, float(epsilons.min())),
        delta=delta,
        formula="Opacus: RDP of the Poisson-sampled Gaussian, converted as by Balle et al. 2020",
        flaw=HOLDS,
        proven=repeated(step, steps),
        proven_note="Noise scaled by the clipping bound, Poisson batches at rate batch/graphs, and "
        "no layer that mixes graphs, such as BatchNorm. Choosing among runs or checkpoints is not "
        "covered.",
        as_run="The released code for Fingerprint and molbace (tamaramueller/DP-GNNs) does not "
        "scale the noise by the clipping bound: a noise of 1 at a bound of 3 is a multiplier of "
        "1/3. Batches are cut from a shuffled list, not Poisson. The code for the synthetic graphs "
        "scales the noise, by Opacus.",
    )


# --- perturbed aggregation ------------------------------------------------------------------------


def gap(
    *,
    unit: str = "edge",
    hops: int,
    noise_multiplier: float,
    delta: float,
    directed: bool = False,
    max_degree: int | None = None,
    encoder_noise: float | None = None,
    classifier_noise: float | None = None,
    rate: float | None = None,
    steps: int | None = None,
) -> Claim:
    r"""GAP: K = ``hops`` sums of unit rows, each with N(0, sigma^2) on every coordinate.

        edge:  (alpha, K alpha / (2 sigma^2))-RDP, hence
               epsilon = K / (2 sigma^2) + sqrt(2 K ln(1 / delta)) / sigma
        node:  epsilon = min over alpha of D K alpha / (2 sigma^2) + steps (RDP of the encoder's
               and of the classifier's sampled Gaussian) + ln(1 / delta) / (alpha - 1)

    sigma = ``noise_multiplier``, D = ``max_degree``. For the unit ``node``, ``encoder_noise`` and
    ``classifier_noise`` are noise multipliers of DP-SGD, ``steps`` of it each at ``rate``; one left
    out sees no private data. ``directed`` matters to the unit ``edge`` alone.
    """
    hops = _validate.integer("hops", hops, "[1, 1000]")
    noise = _validate.number("noise_multiplier", noise_multiplier, _NOISE)
    delta = _validate.number("delta", delta, "(0, 1)")
    run = _aggregation(unit, directed, max_degree, encoder_noise, classifier_noise, rate, steps)
    if not run.training:
        _require_absent("encoder_noise or classifier_noise is given", rate=rate)
    return Claim(
        paper="Sajadmanesh et al. 2023, arXiv 2203.00949",
        method="gap",
        claimed_epsilon=classic(run.rdp(hops, noise), delta),
        delta=delta,
        formula="RDP of one Gaussian for each hop, of sensitivity 1"
        if unit == "edge"
        else "RDP of one Gaussian for each hop, of sensitivity sqrt(max_degree), and of DP-SGD",
        flaw=run.flaw,
        proven=run.event(hops, noise),
        proven_note=run.note,
    )


_SIMILARITY_MAX = float(special.expit(1.0))  # the largest sigmoid of a cosine, 0.731


def shpilevskiy(  # noqa: PLR0913
    *,
    weighting: str,
    unit: str = "edge",
    hops: int,
    noise_multiplier: float,
    delta: float,
    directed: bool = False,
    attention_noise: float | None = None,
    attention_steps: int | None = None,
    rate: float | None = None,
    max_degree: int | None = None,
    encoder_noise: float | None = None,
    classifier_noise: float | None = None,
    steps: int | None = None,
) -> Claim:
    r"""GAP with weighted messages, by sigmoid(cosine) or by an attention network.

        similarity: as :func:`gap`, whose sensitivity of 1 it keeps
        attention:  Theorem 2: (alpha, epsilon_1(alpha) + T alpha / (2 sigma^2))-RDP, hence
                    epsilon = min over alpha of that + ln(1 / delta) / (alpha - 1)

    epsilon_1 is the RDP of T = ``attention_steps`` steps of DP-SGD at ``rate`` and noise multiplier
    ``attention_noise``, one loss term removed; each of them has a perturbed forward pass. The paper
    is about one hop and about edges; ``hops`` repeats the passes, and the unit ``node`` reads it
    with GAP's node-level sensitivity.

    The theorem is about training: the pass that fills the cache is beside it, and is in
    ``claim_with_cache``. ``claim_with_delta_split`` converts training and the T + 1 passes each for
    itself at delta / 2, for those who first spend on training and then what is left.
    """
    _validate.choice("weighting", weighting, ("similarity", "attention"))
    hops = _validate.integer("hops", hops, "[1, 1000]")
    noise = _validate.number("noise_multiplier", noise_multiplier, _NOISE)
    delta = _validate.number("delta", delta, "(0, 1)")
    run = _aggregation(unit, directed, max_degree, encoder_noise, classifier_noise, rate, steps)
    claim = partial(
        Claim, paper="Shpilevskiy et al., weighted GAP", method="shpilevskiy", delta=delta
    )
    if weighting == "similarity":
        attention = {"attention_noise": attention_noise, "attention_steps": attention_steps}
        _require_absent("weighting is 'attention'", **attention)
        return claim(
            claimed_epsilon=classic(run.rdp(hops, noise), delta),
            formula="GAP's formula, with sensitivity 1 for each message",
            flaw=run.flaw
            if run.messages == 1
            else "An undirected edge is two messages and moves two rows, by up to 0.731 each: its "
            "sensitivity is 1.034, where 1 is charged.",
            proven=run.event(hops, noise / _SIMILARITY_MAX),
            proven_note="Charges sigmoid(1) = 0.731, the largest weight there is, for each "
            f"message. {run.note}",
        )
    passes = _validate.integer("attention_steps", attention_steps, "[1, 1e9]")
    sgd_noise = _validate.number("attention_noise", attention_noise, _NOISE)
    q = _validate.number("rate", rate, "(0, 1]")
    removed, altered = (0, run.messages) if unit == "edge" else (1, run.square)
    terms = {"removed": removed, "altered": altered}
    step = events.SampledGaussianDpEvent(rate=q, noise_multiplier=sgd_noise, **terms)

    def sgd(order: float) -> float:
        return passes * sampled_rdp(q, sgd_noise, order)

    trained, cached = run.rdp(passes * hops, noise), run.rdp((passes + 1) * hops, noise)
    return claim(
        claimed_epsilon=classic(lambda order: sgd(order) + trained(order), delta),
        formula="Theorem 2: RDP of DP-SGD, and of a Gaussian for each training step and hop",
        flaw="Loss terms that the attention's training alters, 2C for each, are charged as one "
        "removed term, C; batches of a fixed number of nodes are charged as Poisson ones; the pass "
        "that fills the cache is left out. Against that it pays for forward passes that are never "
        "released, so its epsilon may still be the larger.",
        proven=composed(run.event(hops, noise), repeated(step, hops * passes)),
        proven_note="Attention trained one hop at a time on cached rows, attention_steps Poisson "
        f"batches of per-node losses for each; every hop is released once. {run.note}",
        further={
            "claim_with_cache": classic(lambda order: sgd(order) + cached(order), delta),
            "claim_with_delta_split": classic(sgd, delta / 2) + classic(cached, delta / 2),
        },
    )


# --- personalised PageRank ------------------------------------------------------------------------


_ZHANG = "Zhang et al. 2024, arXiv 2210.04442"


def dpar(*, epsilon: float, graph_rate: float, delta: float | None = None) -> Claim:
    r"""DPAR, the whole: Theorem 2's q' (eps_sgd + eps_pr, delta_sgd + delta_pr).

    q' is ``graph_rate``. Give the ``epsilon`` the paper prints. What it says of the parts inside is
    epsilon / q'; keeping each node with probability q' turns that into
    ``claim_with_sampling_corrected``,

        ln(1 + q' (exp(epsilon / q') - 1))

    which still takes the parts inside for granted. eps_pr is :func:`dpar_rows`'s.
    """
    epsilon = _validate.number("epsilon", epsilon, "(0, inf)")
    graph_rate = _validate.number("graph_rate", graph_rate, "(0, 1]")
    delta = None if delta is None else _validate.number("delta", delta, "(0, 1)")
    inside = epsilon / graph_rate
    return Claim(
        paper=_ZHANG,
        method="dpar",
        claimed_epsilon=epsilon,
        delta=delta,
        formula="Theorem 2: the graph's sampling rate times (eps_sgd + eps_pr)",
        flaw="Sampling multiplies exp(eps) - 1 by the rate, not eps. The parts inside do not hold "
        "as published either: Theorem 2 leaves its constants open and its proof takes exp(x) for "
        "at most 1 + x, a column's l1 norm does not bound the change of clipped gradients, and "
        "Theorem 3 charges C1 for rows that are sqrt(2) C1 apart.",
        proven=None,
        proven_note="No run as published. The claim with sampling corrected assumes that the parts "
        f"inside are {inside:.4g}-DP, which nobody has proven, and that the sample of nodes stays "
        "secret. What a run with the paper's noise costs: graphveil train dpar --set paper=true.",
        as_run="The released code (Emory-AIMS/DPAR) trains on every sampled node, those beyond the "
        "M rows on themselves alone. It samples a fixed number of nodes, lengthens columns of an "
        "l1 norm below 1 as well, and keeps the batches of the first epoch for all epochs.",
        further={"claim_with_sampling_corrected": amplify(inside, graph_rate)},
    )


def dpar_rows(
    *,
    mechanism: str,
    noise_multiplier: float,
    rows: int,
    delta: float,
    neighbours: int | None = None,
    value_noise: float | None = None,
) -> Claim:
    r"""DPAR's private rows: Theorem 3 (``gm``) and Theorem 1 (``em0``, ``em1``), before sampling.

        gm:   epsilon_row = sqrt(2 ln(1.25 / d)) / sigma,  N(0, (sigma C1)^2) on every score
        em0:  epsilon_row = 2 min(K e, K e (exp(2e) - 1) / (exp(2e) + 1) + e sqrt(2 K ln(1 / d))),
              e = 1 / sigma, Gumbel noise of scale sigma C2 on every score (Corollary 1)
        em1:  the same + K / b, Laplace noise of scale b C2 on the K values

        epsilon_row = epsilon / (2 sqrt(M ln(e + epsilon / delta))),  d = delta / (2 M)

    sigma = ``noise_multiplier``, b = ``value_noise``, K = ``neighbours``, M = ``rows``. Corollary
    1's figure is ``claim_for_one_row``, at ``delta_for_one_row``.
    """
    _validate.choice("mechanism", mechanism, formulas.DPAR_MECHANISMS)
    noise = _validate.number("noise_multiplier", noise_multiplier, _NOISE)
    rows = _validate.integer("rows", rows, "[1, 1e6]")
    delta = _validate.number("delta", delta, "(0, 1)")
    event: dpa.DpEvent
    if mechanism == "gm":
        _require_absent("the mechanism is 'em0' or 'em1'", neighbours=neighbours)
        k = 0
        event = dpa.GaussianDpEvent(noise / math.sqrt(2 * rows))
        note = "One Gaussian of sensitivity sqrt(2 M) C1 for all rows, noise on every score."
    else:
        k = _validate.integer("neighbours", neighbours, "[1, 1e6]")
        event = repeated(events.GumbelTopKDpEvent(noise_multiplier=noise, k=k), rows)
        note = "Names of the K largest of each row, after Gumbel noise on every score."
    if mechanism == "em1":
        value_noise = _validate.number("value_noise", value_noise, _NOISE)
        event = composed(event, repeated(dpa.LaplaceDpEvent(value_noise), rows * k))
        note = note[:-1] + ", and their values, clipped to C2, with Laplace noise on each."
    else:
        _require_absent("the mechanism is 'em1'", value_noise=value_noise)
    noises, sizes = RowNoise(noise, value_noise), {"rows": rows, "neighbours": k}
    row = formulas.dpar_row_epsilon(mechanism, noises, delta=delta, **sizes)
    return Claim(
        paper=_ZHANG,
        method="dpar-rows",
        claimed_epsilon=formulas.dpar_rows_epsilon(row, delta=delta, rows=rows),
        delta=delta,
        formula="Theorem 3: Gaussian rows, composed over the rows"
        if mechanism == "gm"
        else "Theorem 1: Corollary 1 for one row, composed over the rows",
        flaw=(_GAUSSIAN_ROWS if mechanism == "gm" else "") + _LARGE_ROWS,
        proven=event,
        proven_note=f"{note} One node may change every score of every row.",
        further={"claim_for_one_row": row, "delta_for_one_row": delta / (2 * rows)},
    )


_GAUSSIAN_ROWS = (
    "Two non-negative rows of norm at most C1 may be sqrt(2) C1 apart, where C1 is charged; the "
    "noise of one row is made for an epsilon below 1 alone. "
)
_LARGE_ROWS = (
    "The formula that composes the rows is good for a small epsilon: 70 rows of epsilon 1.5 and "
    "more each can leak more than it says."
)


def dpar_steps(*, rate: float, noise_multiplier: float, steps: int, delta: float) -> Claim:
    r"""DPAR's steps: Theorem 2's eps_sgd before sampling, its open constants as the code has them.

        epsilon = min over alpha of steps ln A(alpha) / (alpha - 1) + ln(1 / delta) / (alpha - 1)

    with A as in :func:`igamberdiev` and q = ``rate``, batch / sampled training nodes.
    """
    rate = _validate.number("rate", rate, "(0, 1]")
    noise = _validate.number("noise_multiplier", noise_multiplier, _NOISE)
    steps = _validate.integer("steps", steps, "[1, 1e9]")
    delta = _validate.number("delta", delta, "(0, 1)")
    return Claim(
        paper=_ZHANG,
        method="dpar-steps",
        claimed_epsilon=formulas.dpar_steps_epsilon(rate, noise, steps, delta),
        delta=delta,
        formula="Theorem 2, whose constants are open: RDP of plain DP-SGD, as in the released code",
        flaw="A node's features stand in the terms of all who have it among their K neighbours; "
        "one removed term is charged. A column's l1 norm does not bound the others' change.",
        proven=None,
        proven_note="No run as published. What such steps cost: graphveil train dpar --set "
        "paper=true.",
    )


_PAPERS = (daigavane, igamberdiev, mueller, gap, shpilevskiy, dpar, dpar_rows, dpar_steps)
CLAIMS: dict[str, Callable[..., Claim]] = {
    claim.__name__.replace("_", "-"): claim for claim in _PAPERS
}


# --- shared pieces --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Aggregation:
    """What one hop of GAP moves: ``square`` is the squared sensitivity the paper states."""

    square: int
    messages: int
    training: list[dpa.DpEvent]
    flaw: str
    note: str

    def rdp(self, releases: int, noise: float) -> Callable[[float], float]:
        """As published: ``releases`` Gaussians of the stated sensitivity, and the training."""
        return lambda order: (
            releases * self.square * order / (2 * noise**2)
            + sum(
                part.count * sampled_rdp(part.event.rate, part.event.noise_multiplier, order)
                for part in self.training
            )
        )

    def event(self, hops: int, noise: float) -> dpa.DpEvent:
        """As proven: the messages of an undirected edge move one row each."""
        multiplier = noise / math.sqrt(self.square * self.messages)
        return composed(repeated(dpa.GaussianDpEvent(multiplier), hops), *self.training)


def _aggregation(
    unit: str,
    directed: bool,
    max_degree: int | None,
    encoder_noise: float | None,
    classifier_noise: float | None,
    rate: float | None,
    steps: int | None,
) -> _Aggregation:
    training = {"encoder_noise": encoder_noise, "classifier_noise": classifier_noise}
    if _validate.choice("unit", unit, ("edge", "node")) == "edge":
        _require_absent("the unit is 'node'", max_degree=max_degree, steps=steps, **training)
        return _Aggregation(
            square=1,
            messages=1 if directed else 2,
            training=[],
            flaw=HOLDS
            if directed
            else "An undirected edge is two messages and moves two rows: its sensitivity is "
            "sqrt(2), where 1 is charged.",
            note=f"{'One message' if directed else 'Two messages'} an edge; noise on every row.",
        )
    max_degree = _validate.integer("max_degree", max_degree, "[1, 10000]")
    if all(noise is None for noise in training.values()):
        _require_absent("encoder_noise or classifier_noise is given", steps=steps)
    parts = []
    for name, value in training.items():
        if value is not None:
            q = _validate.number("rate", rate, "(0, 1]")
            noise = _validate.number(name, value, _NOISE)
            step = events.SampledGaussianDpEvent(rate=q, noise_multiplier=noise)
            count = _validate.integer("steps", steps, "[1, 1e9]")
            parts.append(dpa.SelfComposedDpEvent(step, count))
    return _Aggregation(
        square=max_degree,
        messages=1,
        training=parts,
        flaw="Stated for the whole cache, but the node's own rows are not covered: hop 0 is its "
        "encoding, and the sum of what reaches it has no bound.",
        note="Each node sends at most max_degree messages, chosen from its own list; encoder and "
        "classifier use Poisson batches, or no private data where no noise is given. Covers the "
        "weights, and all rows and predictions but the node's own.",
    )


def _require_absent(unless: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidInputError(
                f"The '{name}' parameter must be left out unless {unless}. Got {value!r} instead."
            )
