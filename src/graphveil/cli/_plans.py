"""Plans on the command line: the public facts that are stated, and how a plan is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli._output import Result, plural
from graphveil.cli._runs import add_cost, make_source

if TYPE_CHECKING:
    from graphveil.methods import Facts, Plan
    from graphveil.privacy.guarantee import Certificate

SIZES = {"nodes": "num_records", "features": "num_features", "classes": "num_classes"}

EDGES = "edges"  # as graphveil.runs.source has it

# What is public of data that is not at hand; planned_facts reads them.
known_data = click.option(
    "--data", help="A name of the catalog: its sizes are taken, its data is not touched."
)
sizes = option.together(
    click.option("--features", type=int, help="Number of feature columns."),
    click.option("--classes", type=int, help="Number of classes."),
    click.option("--train", type=int, help="Records to train on. Default: by split and shares."),
    option.split,
    option.fractions,
    option.train_share,
    option.thinned,
    click.option(
        "--directed/--undirected",
        default=None,
        help="Whether edges have a direction; the unit edge asks for it.",
    ),
)

# Of links: sources are the records, and targets stand where classes do.
of_links = option.together(
    click.option("--targets", type=int, help="Of links: how many targets, whose rows are public."),
    click.option("--target-features", type=int, help="Of links: feature columns of targets."),
    click.option(
        "--link",
        type=click.Choice([EDGES]),
        help="Take the edges of a graph for links between its nodes: all are people.",
    ),
)


def plan_rows(planned: Plan, certificate: Certificate) -> list[tuple[str, str]]:
    """What ``graphveil plan`` prints of a plan."""
    return plan_result(planned, certificate).rows()


def plan_result(planned: Plan, certificate: Certificate) -> Result:
    """What a plan runs and costs, for programs and for a person."""
    result = Result(f"What {planned.method} will cost", method=planned.method)
    add_cost(result, certificate)
    result.update({"unit": planned.unit, "relation": planned.relation, **planned.details})
    if "hops" in planned.details:
        _add_sums(result, planned)
    elif "sensitivity" in planned.details:
        _add_counts(result, planned)
    elif "epochs" in planned.details:
        _add_epochs(result, planned.details)
    elif planned.details:
        _add_steps(result, planned)
    result.update({"facts": vars(planned.facts)})
    result.row("planned for", _planned_for(planned.facts))
    return result


def _planned_for(facts: Facts) -> str:
    """What is public of the data, in one line."""
    records = "source" if facts.record == "link" else facts.record
    return (
        f"{facts.num_nodes:,} {records}s{_owner_words(facts)}, {facts.num_train:,} to train on, "
        f"{facts.num_features:,} features, {_answers(facts)}"
    )


def _add_counts(result: Result, planned: Plan) -> None:
    """The row of a method that releases noisy counts of targets, and nothing else."""
    from graphveil.privacy.guarantee import ONE

    details = planned.details
    noise = details["noise_multiplier"] * details["sensitivity"]
    result.row(
        "noisy counts",
        f"{planned.facts.num_classes:,}; {ONE[planned.unit]} moves them by at most "
        f"{details['sensitivity']:.4g} in length, noise {noise:.4g} on every count",
    )


def _add_sums(result: Result, planned: Plan) -> None:
    """The rows of a method that sends noisy sums."""
    from graphveil.privacy.guarantee import ONE

    details = planned.details
    noise = details["noise_multiplier"] * details["sensitivity"]
    result.row(
        "noisy sums",
        f"{plural(int(details['hops']), 'hop')}; {ONE[planned.unit]} moves each by at most "
        f"{details['sensitivity']:.4g}, noise {noise:.4g} on every entry",
    )
    for name, share in details.items():
        if name.endswith("_share"):
            result.row(f"for the {name.removesuffix('_share')}", f"{share:.0%} of the budget")
    if "steps" in details:
        result.row("private steps", f"{details['steps']:g} a part, each drawing {_draw(details)}")
    result.row("parameters", f"{details['parameters']:,}")


def _add_steps(result: Result, planned: Plan) -> None:
    """The rows of a method that takes noisy steps."""
    from graphveil.privacy.guarantee import ONE

    details = planned.details
    terms = f"{details['removed']:g} loss term{'' if details['removed'] == 1 else 's'}"
    influence = f"{ONE[planned.unit]} removes {terms} and alters {details['altered']:g} more"
    if "hash_columns" in details:
        result.row("model", _describe_counts(details))
    result.row("noise multiplier", f"{details['noise_multiplier']:.6g}")
    result.row("influence", influence)
    if "delivery" in details:
        coin = f"each reaches its loss term with probability {details['delivery']:g}, by a secret"
        result.row("messages", f"{coin} coin at every step; the noise counts on it")
    result.row("steps", f"{details['steps']:g}, each drawing {_draw(details)}")
    if "right_choice" in details:
        _add_structure(result, details)
    if "centred" in details:
        _add_recipe(result, details)
    result.row("parameters", f"{details['parameters']:,}")
    ratio = details["signal_to_noise"]
    result.row("signal to noise", f"at most {ratio:.3g} in a step; far below 1 little is learned")


def _describe_counts(details: Mapping[str, Any]) -> str:
    """What a linear model of whole graphs reads, and how long its steps are."""
    return (
        "linear, on counts of each graph's own patterns; "
        f"{plural(int(details['rounds']), 'round')} of refinement, {details['hash_columns']:,g} "
        f"columns each, steps of {details['learning_rate']:.3g}"
    )


def _add_epochs(result: Result, details: Mapping[str, Any]) -> None:
    """The rows of a method that adds noise to gradients that nothing bounds."""
    groups = plural(int(details["splits"]), "group")
    result.row("noise", f"{details['noise_multiplier']:.6g} on every coordinate of a gradient")
    result.row("influence", "nothing bounds what one node does to a gradient")
    result.row("steps", f"{details['steps']:,}: {details['epochs']:,} epochs of {groups} in turn")
    result.row("parameters", f"{details['parameters']:,}")


def _add_recipe(result: Result, details: Mapping[str, Any]) -> None:
    """What was decided for training on own rows."""
    layers, columns = plural(int(details["layers"]), "layer"), f"{details['columns']:,} columns"
    centred = ", less a noisy mean row" if details["centred"] else ""
    result.row("network", f"{layers} on {columns}{centred}")
    result.row("learning rate", f"{details['learning_rate']:.4g}")


def _add_structure(result: Result, details: Mapping[str, Any]) -> None:
    """What the choice of neighbours gets, and what can come of it."""
    share, chance = details["structure_share"], f"{details['right_choice']:.3g}"
    result.row(
        "structure",
        f"{share:.0%} of the budget; the one node that matters to a row would be its first choice "
        f"with probability {chance}"
        if share
        else "no budget: with all of it the one node that matters to a row would be its first "
        f"choice with probability {chance}. It is read in prediction; without a budget for it "
        "this is late-graph's case: take late-graph, which is made for it",
    )
    result.row("rows", f"{details['rows']:,} training nodes")
    if details["graph_rate"] < 1:
        result.row("sample", f"each node takes part with probability {details['graph_rate']:g}")


def _owner_words(facts: Facts) -> str:
    """How many owners there are, who are counted where all records of one are one term."""
    return "" if facts.num_owners is None else f" of {facts.num_owners:,} owners"


def _answers(facts: Facts) -> str:
    """How many classes, labels or targets there are, or between which values one is."""
    if facts.record == "link" and facts.target_features is None:
        return "targets are the sources themselves"
    if facts.record == "link":
        return f"{facts.num_classes:,} targets of {facts.target_features:,} features, rows public"
    if facts.value_range is not None:
        return f"a value from {facts.value_range[0]:g} to {facts.value_range[1]:g}"
    return f"{facts.num_classes} {'labels' if facts.task == 'multilabel' else 'classes'}"


def _draw(details: Mapping[str, Any]) -> str:
    if "batch_size" in details:
        return f"exactly {details['batch_size']:,} terms"
    return f"terms at rate {details['sample_rate']:g}"


def planned_facts(asked: Mapping[str, Any], sizes: dict[str, Any], record: str) -> Facts:
    """What is public of the data: from the catalog, where the sizes are not stated.

    With ``link`` the edges of a graph are the records, and the graph is what is known.
    """
    from graphveil.data.catalog import sizes_of

    data, link = asked.get("data"), asked.get("link")
    if link not in (None, EDGES):
        raise InvalidInputError(
            f"A plan must know links by their sizes. Got the relation {link!r} instead; give "
            "--sources, --targets, --features and --target-features."
        )
    known = None if data is None else sizes_of(data)
    record = known.record if known is not None else "node" if link else record
    if record != "link" and (sizes.get("targets"), sizes.get("target-features")) != (None, None):
        raise click.UsageError(
            "'--targets' and '--target-features' go with methods for links and data of links. Got "
            f"them for {record}s; leave them out."
        )
    whole = _whole_facts(data, sizes, record)
    names = ("split", "fractions", "train_share", "thinned", "link")
    source = {name: asked[name] for name in names if asked.get(name) is not None}
    if record == "link" and data is None:
        source.setdefault("split", "transductive")
    expected = make_source({"data": data or "", **source}).expected(whole)
    if sizes.get("train") is not None:
        return replace(expected or whole, num_train=sizes["train"])
    if expected is None:
        of = "Of such a split" if data is None else f"Of {data!r}"
        raise click.UsageError(f"{of} it varies how many are trained on; give --train.")
    return expected


def _whole_facts(data: str | None, sizes: Mapping[str, Any], record: str) -> Facts:
    """The facts of the whole data, as if one record were trained on."""
    from graphveil.data.catalog import sizes_of
    from graphveil.methods import Facts

    known = None if data is None else sizes_of(data)
    of_links = record == "link"
    stated = dict(sizes)
    if of_links:
        stated["classes"] = _number_of_targets(stated, known is not None)
    sizes = stated
    if known is not None:
        listed = {option: getattr(known, name) for option, name in SIZES.items()}
        listed |= {"directed": known.directed, "target-features": known.target_features}
        sizes = listed | {key: value for key, value in stated.items() if value is not None}
    names = {"nodes": "sources"} if of_links else {}
    asked_for = ("nodes", "features") if of_links else SIZES  # targets may be the sources
    missing = ", ".join(f"--{names.get(key, key)}" for key in asked_for if sizes[key] is None)
    if missing and data is None:
        raise click.UsageError(f"Give {missing}, or '--data' with a name.")
    if missing and known is not None:
        raise click.UsageError(f"The sizes of {data!r} vary; give {missing}.")
    if missing:
        options = "--sources, --targets, --features and --target-features"
        if not of_links:
            options = f"--{record}s, --features and --classes"
        raise InvalidInputError(
            "This command touches no data, so that '--data' must be a name of 'graphveil data "
            f"list'. Got {data!r} instead; for other data give {options}."
        )
    two_types = of_links and sizes.get("target-features") is not None
    task = "multiclass" if known is None else known.task or "multiclass"
    return Facts(
        num_nodes=_validate.integer("num_nodes", sizes["nodes"], "[1, 1e12]"),
        num_features=sizes["features"],
        num_classes=sizes["classes"],
        num_train=1,
        directed=True if two_types else sizes["directed"],
        record=record,
        task="link" if of_links else task,
        value_range=None if known is None else known.value_range,
        target_features=sizes["target-features"] if two_types else None,
    )


def _number_of_targets(sizes: Mapping[str, Any], cataloged: bool) -> int | None:
    """How many targets are stated: with columns of their own, or else the sources themselves."""
    if sizes.get("classes") is not None:
        raise click.UsageError("Links have no classes. Got '--classes'; write '--targets'.")
    targets: int | None = sizes.get("targets")
    if cataloged:
        return targets
    if (targets is None) != (sizes.get("target-features") is None):
        raise click.UsageError(
            "'--targets' and '--target-features' go together: how many targets there are, and how "
            "many columns their public rows have. Leave both out where targets are sources."
        )
    return sizes["nodes"] if targets is None else targets
