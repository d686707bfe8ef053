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


def plan_rows(planned: Plan, certificate: Certificate) -> list[tuple[str, str]]:
    """What ``graphveil plan`` prints of a plan."""
    return plan_result(planned, certificate).rows()


def plan_result(planned: Plan, certificate: Certificate) -> Result:
    """What a plan runs and costs, for programs and for a person."""
    result = Result(f"What {planned.method} will cost", method=planned.method)
    add_cost(result, certificate)
    result.update({"unit": planned.unit, "relation": planned.relation, **planned.details})
    if "sensitivity" in planned.details:
        _add_sums(result, planned)
    elif "epochs" in planned.details:
        _add_epochs(result, planned.details)
    elif planned.details:
        _add_steps(result, planned)
    facts = planned.facts
    result.update({"facts": vars(facts)})
    result.row(
        "planned for",
        f"{facts.num_nodes:,} {facts.record}s{_owned(facts)}, {facts.num_train:,} to train on, "
        f"{facts.num_features:,} features, {_answers(facts)}",
    )
    return result


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


def _owned(facts: Facts) -> str:
    """How many owners there are, who are counted where all records of one are one term."""
    return "" if facts.num_owners is None else f" of {facts.num_owners:,} owners"


def _answers(facts: Facts) -> str:
    """How many classes or labels there are, or between which values one is."""
    if facts.value_range is not None:
        return f"a value from {facts.value_range[0]:g} to {facts.value_range[1]:g}"
    return f"{facts.num_classes} {'labels' if facts.task == 'multilabel' else 'classes'}"


def _draw(details: Mapping[str, Any]) -> str:
    if "batch_size" in details:
        return f"exactly {details['batch_size']:,} terms"
    return f"terms at rate {details['sample_rate']:g}"


def planned_facts(asked: Mapping[str, Any], sizes: dict[str, Any], record: str) -> Facts:
    """What is public of the data: from the catalog, where the sizes are not stated."""
    from graphveil.data.catalog import sizes_of
    from graphveil.methods import Facts

    data = asked.get("data")
    known = None if data is None else sizes_of(data)
    task, value_range = "multiclass", None
    if known is not None:
        listed = {option: getattr(known, name) for option, name in SIZES.items()}
        listed["directed"], record = known.directed, known.record
        task, value_range = known.task or task, known.value_range
        sizes = listed | {key: value for key, value in sizes.items() if value is not None}
    missing = ", ".join(f"--{key}" for key in SIZES if sizes[key] is None)
    if missing and data is None:
        raise click.UsageError(f"Give {missing}, or '--data' with a name.")
    if missing and known is not None:
        raise click.UsageError(f"The sizes of {data!r} vary; give {missing}.")
    if missing:
        raise InvalidInputError(
            "This command touches no data, so that '--data' must be a name of 'graphveil data "
            f"list'. Got {data!r} instead; for other data give --{record}s, --features and "
            "--classes."
        )
    whole = Facts(
        num_nodes=_validate.integer("num_nodes", sizes["nodes"], "[1, 1e12]"),
        num_features=sizes["features"],
        num_classes=sizes["classes"],
        num_train=1,
        directed=sizes["directed"],
        record=record,
        task=task,
        value_range=value_range,
    )
    source = {
        name: asked[name]
        for name in ("split", "fractions", "train_share", "thinned")
        if asked.get(name) is not None
    }
    expected = make_source({"data": data or "", **source}).expected(whole)
    if sizes.get("train") is not None:
        return replace(expected or whole, num_train=sizes["train"])
    if expected is None:
        raise click.UsageError(f"How many of {data!r} are trained on varies; give --train.")
    return expected
