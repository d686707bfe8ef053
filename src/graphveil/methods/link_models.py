"""What private and open methods for links share: settings, networks, terms, answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from graphveil._errors import UnprovenError
from graphveil.graph.link_influence import people_influence
from graphveil.methods.features import Features
from graphveil.methods.settings import FeatureSettings, setting, settings
from graphveil.nn.link_descriptions import LinkNetwork

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.graph.link_terms import LinkTerms
    from graphveil.methods.link_scoring import LinkScores, Recommendations
    from graphveil.methods.plan import Facts

_WIDE = 1024  # columns of public features that are reduced, at most twice as many
_EVENED = 0.25  # how far directions are made alike: 0 leaves lengths, 1/2 makes them the same
CONTENT = 64  # columns of targets' features that are matched, at most
_STABLE = 3.5  # of a length times curvature: with momentum 0.9 steps diverge from 3.8 on
_NEGATIVES = {"dot": 64, "mlp": 16}
_KEPT, _KEPT_PEOPLE = 8, 2
_PRIOR, _PRIOR_OF_ONE_TYPE = 10.0, 2.0

Unit = Literal["node", "edge"]


@settings(feature_scale=1.0, projection=CONTENT, project_above=CONTENT, hidden_channels=16)
class LinkSettings(FeatureSettings):
    """How links are scored, and which pairs a step reads."""

    unit: Unit = setting("What is protected: a 'node' with its own list, or one 'edge'.", "node")
    scorer: Literal["dot", "mlp"] = setting(
        "How a source is matched with a target: a 'dot' product, or an 'mlp' beside it.", "dot"
    )
    popularity: bool = setting("Whether how often targets are linked is part of scores.", True)
    prior: float | None = setting(
        "How strongly sources are matched before training with what is like their list, or where "
        "there is none and both ends are one type, like themselves; by default 10 and 2.",
        None,
        "[0, inf)",
    )
    links_kept: int | None = setting(
        "Of each source's list how many are trained on (K); by default 8, and 2 where both ends "
        "are people.",
        None,
        "[1, 1000]",
    )
    links_in: int | None = setting(
        "Where both ends are people: how many kept links may name one of them (K_in); by default "
        "as many as are kept.",
        None,
        "[1, 1e6]",
    )
    negatives: int | None = setting(
        "Targets that each link is set against; by default 64 (of 'mlp' 16), and 1 where both "
        "ends are people.",
        None,
        "[1, 1e5]",
    )


def is_of_people(method: Any, facts: Facts) -> bool:
    """Whether both ends are people whose rows are private."""
    return facts.target_features is None and method.unit == "node"


def kept_of(method: Any, facts: Facts) -> int:
    """How many links of a list are trained on."""
    usual = _KEPT_PEOPLE if is_of_people(method, facts) else _KEPT
    return usual if method.links_kept is None else int(method.links_kept)


def kept_in_of(method: Any, facts: Facts) -> int:
    """How many kept links may name one person."""
    return kept_of(method, facts) if method.links_in is None else int(method.links_in)


def negatives_of(method: Any, facts: Facts) -> int:
    """How many targets each link is set against."""
    usual = 1 if is_of_people(method, facts) else _NEGATIVES[method.scorer]
    return usual if method.negatives is None else int(method.negatives)


def influence_of_unit(method: Any, facts: Facts) -> tuple[int, int]:
    """How many loss terms one unit removes and alters; docs/guarantees/links.md."""
    if not is_of_people(method, facts):
        return 1, 0
    return people_influence(
        kept_of(method, facts), kept_in_of(method, facts), negatives_of(method, facts)
    )


def target_features(method: Any, *, people: bool) -> Features:
    """How targets' features are read: as those of sources, but that public ones stay wide."""
    features = Features.of(method)
    return features if people else replace(features, projection=_WIDE, project_above=2 * _WIDE)


def describe_network(method: Any, facts: Facts) -> LinkNetwork:
    """The scorer."""
    one_type = facts.target_features is None
    columns = target_features(method, people=is_of_people(method, facts)).columns(
        facts.target_features or facts.num_features
    )
    content = min(columns, CONTENT)
    reads_list = not one_type and method.unit == "node"
    return LinkNetwork(
        # Of one type a source is read as a target is: by its content.
        source_columns=content if one_type else Features.of(method).columns(facts.num_features),
        target_columns=columns,
        content=content,
        num_targets=facts.num_classes,
        reads_list=reads_list,
        popularity=method.popularity,
        prior=_prior_of(method, reads_list, one_type),
        scorer=method.scorer,
        hidden_channels=method.hidden_channels,
        activation=method.activation,
    )


def _prior_of(method: Any, reads_list: bool, one_type: bool) -> float:
    if not (reads_list or one_type):
        return 0.0
    usual = _PRIOR if reads_list else _PRIOR_OF_ONE_TYPE
    return usual if method.prior is None else float(method.prior)


def fit_content(method: Any, facts: Facts, network: Any, data: Data) -> None:
    """Have the network know which columns of targets' features say most, where those are public.

    Targets count as often as they are linked, as far as that was released: so what lists have in
    common is taken away, and steps may be long.

    *Guarantee conditions*: rows of people are read by themselves: they have no centre and no
    components. Popularity was released before.
    """
    import torch

    from graphveil.methods.link_scoring import rows_of_targets

    if is_of_people(method, facts):
        return
    rows = rows_of_targets(method, data).double()
    weights = torch.ones(len(rows), dtype=torch.float64)
    if len(network.popularity):
        weights = network.popularity.double().exp()
    weights = (weights / weights.sum()).unsqueeze(1)
    centre = (weights * rows).sum(0)
    rows = rows - centre
    values, vectors = torch.linalg.eigh(rows.t() @ (weights * rows))
    content = network.components.shape[1]
    values, vectors = values[-content:].flip(0), vectors[:, -content:].flip(1)
    largest = values[0].clamp_min(1e-12)
    network.centre.copy_(centre)
    network.components.copy_(vectors * (values / largest).clamp_min(1e-6) ** -_EVENED)


def make_terms(
    method: Any,
    facts: Facts,
    network: Any,
    data: Data,
    *,
    rate: float,
    divisor: float | None = None,
) -> LinkTerms:
    """The loss terms of the method's unit, of which a step draws the share ``rate``."""
    from graphveil.graph import link_terms
    from graphveil.graph.link_terms import OwnRow, OwnRowAndList
    from graphveil.graph.links import is_directed, is_one_type, own_lists
    from graphveil.methods.link_scoring import read_sources

    reads: Any
    reads, table, _ = read_sources(method, data, network)
    table, lists = table.double(), own_lists(data)
    block = max(1, round(link_terms.SHARING / rate))
    count, seed = negatives_of(method, facts), method.seed
    of_all: dict[str, Any] = {"negatives": count, "seed": seed}
    if method.unit == "edge":
        both = is_one_type(data) and not is_directed(data)
        links = data.links[:, data.train_links & data.train_mask[data.links[0]]]
        assert isinstance(reads, OwnRow)
        assert divisor is not None
        return link_terms.edge_terms(
            reads.x, links, table, both=both, divisor=divisor, block=block, **of_all
        )
    kept, train = kept_of(method, facts), data.train_mask
    if isinstance(reads, OwnRowAndList):
        content = network.components.shape[1]
        return link_terms.person_terms(
            reads.x, lists, table, content, train, keep=kept, block=block, **of_all
        )
    cap_in = kept_in_of(method, facts)
    return link_terms.people_terms(reads.x, lists, table, train, cap=kept, cap_in=cap_in, **of_all)


def set_popularity(network: Any, counts: Tensor, least: float) -> None:
    """The logarithm of how often targets are linked, around its mean; no less than the noise."""
    logs = counts.clamp_min(least).log()
    network.popularity.copy_((logs - logs.mean()).float())


def longest_step(network: Any, table: Tensor) -> float:
    """The learning rate beyond which steps of a linear scorer may overshoot, by public rows.

    A pair's loss curves by the covariance of the targets that it is set against, under the chances
    that the scorer gives them: taken alike, or by popularity. Rows of sources have length 1 or so,
    and a constant beside them.
    """
    import torch

    even = torch.ones(len(table), dtype=torch.float64)
    weights = [even, network.popularity.double().exp()] if len(network.popularity) else [even]
    steepest = 0.0
    for weight in weights:
        share = (weight / weight.sum()).unsqueeze(1)
        off = table.double() - (share * table.double()).sum(0)
        curves = torch.linalg.eigvalsh(off.t() @ (share * off))
        steepest = max(steepest, float(curves[-1]))
    return _STABLE / max(2.0 * steepest, 1e-9)


# --- answers --------------------------------------------------------------------------------------


def who_may_see(method: Any, facts: Facts) -> str:
    """Who may see scores."""
    from graphveil.methods import link_scoring

    if method.unit == "edge":
        return link_scoring.PUBLIC_ROWS
    return link_scoring.ITS_OWN if facts.target_features else link_scoring.READS_TARGETS


def link_scores(method: Any, data: Data) -> LinkScores:
    """The scores of a fitted method, to be called with sources and perhaps targets."""
    from graphveil.methods.link_scoring import LinkScores, read_sources

    reads, table, _ = read_sources(method, data, method.network_)
    return LinkScores(method.network_, reads, table)


def recommend(method: Any, data: Any, top: int = 10, sources: Any = None) -> Recommendations:
    """The ``top`` best targets of each source that are not in its own list, best first.

    ``sources`` are numbers of some of them; by default all.

    *Guarantee*: that of the certificate for the weights; ``seen_by`` of the answer says who may see
    a list, and why.
    """
    from graphveil.graph.links import is_one_type
    from graphveil.methods import link_scoring

    data = method.readable(data)
    reads, table, lists = link_scoring.read_sources(method, data, method.network_)
    scores = link_scoring.LinkScores(method.network_, reads, table)
    seen_by = who_may_see(method, method.plan_.facts)
    one_type = is_one_type(data)
    return link_scoring.recommend(scores, lists, seen_by, top, sources, one_type=one_type)


def outputs(method: Any, data: Data, mode: str) -> Tensor:
    """All scores in one table."""
    from graphveil.methods.link_scoring import score_all

    facts = method.plan_.facts
    return score_all(link_scores(method, data), len(data.x), facts.num_classes)


def check_unit(method: Any, facts: Facts) -> None:
    """Refuse what no count is proven for."""
    if method.unit == "node" and facts.target_features is not None and method.links_in is not None:
        raise UnprovenError(
            "The 'links_in' parameter must go with people at both ends. Got "
            f"{method.links_in} for public targets instead; leave it out: nothing is charged there."
        )
