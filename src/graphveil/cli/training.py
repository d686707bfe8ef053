"""Plan a run, train it, predict with it."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil.cli._asked import made, merged, method_named
from graphveil.cli._notices import notices
from graphveil.cli._shared import (
    account_option,
    bar,
    classes_option,
    delta_option,
    directed_option,
    figure,
    force_option,
    json_option,
    ledger_option,
    root_option,
    say,
    set_option,
    show,
    split_option,
)

if TYPE_CHECKING:
    from graphveil.methods import Facts, Method, Plan
    from graphveil.privacy.guarantee import Certificate

METHOD_NAMES = (
    "dp-gnn, late-graph, gap, dpar, graph-split, dp-mlp (private), mlp, gnn (in the open); for "
    "whole graphs graph-dpsgd (private), graph-gnn (in the open)"
)

_config = click.option(
    "--config", type=click.Path(dir_okay=False), help="A TOML file; the command line wins."
)
_epsilon = click.option("--epsilon", type=float, help="What may be spent.")
_data = click.option("--data", help="A name of the catalog, or a path.")
_LARGE_DELTA = 1e-3


# --- plan -----------------------------------------------------------------------------------------


@click.command(epilog=f"METHOD: {METHOD_NAMES}.")
@click.argument("method", required=False)
@click.option("--data", help="A name of the catalog: its sizes are taken, its data is not touched.")
@click.option("--nodes", "--graphs", type=int, help="How many: nodes, or graphs as records.")
@click.option("--features", type=int, help="Number of feature columns.")
@click.option("--classes", type=int, help="Number of classes.")
@click.option("--train", "num_train", type=int, help="Records to train on. Default: 75 %.")
@click.option(
    "--directed/--undirected",
    default=None,
    help="Whether edges have a direction; the unit edge asks for it.",
)
@_epsilon
@delta_option
@set_option
@_config
@click.option("--html", help="A page with sliders around this plan.")
@force_option
@json_option
def plan(
    method: str | None,
    config: str | None,
    sets: tuple[str, ...],
    html: str | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """What a method will run and cost, before any data is touched.

    \b
    graphveil plan dp-gnn --data pubmed --epsilon 8
    graphveil plan dp-gnn --nodes 50000 --features 64 --classes 5 --epsilon 4 --set sender_cap=3
    graphveil plan dp-gnn --data pubmed --epsilon 8 --html plan.html
    """
    if html is not None:
        check_page(html, force)
    sizes = {key: given.pop(key) for key in ("nodes", "features", "classes")}
    sizes |= {"train": given.pop("num_train"), "directed": given.pop("directed")}
    asked = merged(config, {"method": method, **given}, sets)
    kind = method_named(asked.get("method"))
    settings = made(
        kind,
        asked["settings"],
        epsilon=asked.get("epsilon"),
        delta=asked.get("delta"),
        seed=asked.get("seed"),
    )
    facts = _facts(asked.get("data"), sizes, kind.record)
    planned = settings.plan(facts)
    certificate = planned.certificate()
    if html is not None:
        from graphveil.cli.reporting import write_plan

        write_plan(html, settings, facts, _plan_rows)
    result = {
        "method": planned.method,
        **_cost(certificate),
        "unit": planned.unit,
        "relation": planned.relation,
        **planned.details,
        "facts": planned.facts.__dict__,
        **({} if html is None else {"html": html}),
    }
    rows = _plan_rows(planned, certificate)
    rows += [] if html is None else [("written to", html)]
    show(result, as_json, f"What {planned.method} will cost", rows)


def _facts(data: str | None, sizes: dict[str, Any], record: str) -> Facts:
    from graphveil.data.catalog import CATALOG
    from graphveil.methods import Facts

    stated = all(sizes[key] is not None for key in ("nodes", "features", "classes"))
    if data is not None and not (stated and data.partition(":")[0] not in CATALOG):
        entry = CATALOG.get(data.partition(":")[0])
        if entry is None:
            raise InvalidInputError(
                f"A plan touches no data, so '--data' must be one of {', '.join(CATALOG)}. Got "
                f"{data!r} instead; for other data give --{record}s, --features and --classes."
            )
        known = {
            "nodes": entry.num_nodes if entry.record == "node" else entry.num_graphs,
            "features": entry.num_features,
            "classes": entry.num_classes or None,
            "directed": entry.directed and entry.record == "node",
        }
        record = entry.record
        sizes = {**known, **{key: value for key, value in sizes.items() if value is not None}}
    missing = [f"--{key}" for key in ("nodes", "features", "classes") if sizes[key] is None]
    if missing:
        if data is not None:
            raise click.UsageError(f"The sizes of {data!r} vary; give {', '.join(missing)}.")
        raise click.UsageError(f"Give {', '.join(missing)}, or '--data' with a name.")
    train = sizes.get("train")
    count = _validate.integer("num_nodes", sizes["nodes"], "[1, 1e12]")
    return Facts(
        num_nodes=count,
        num_features=sizes["features"],
        num_classes=sizes["classes"],
        num_train=max(1, round(0.75 * count)) if train is None else train,
        directed=sizes["directed"],
        record=record,
    )


def _cost(certificate: Certificate) -> dict[str, Any]:
    claim = certificate.claim
    return {
        "epsilon": certificate.guarantee.epsilon,
        "delta": certificate.guarantee.delta,
        "claimed_epsilon": None if claim is None else claim.epsilon,
        "void_because": list(certificate.void_because),
    }


def _cost_rows(certificate: Certificate, of: str = "") -> list[tuple[str, str]]:
    from graphveil.privacy.guarantee import ONE

    guarantee, claim = certificate.guarantee, certificate.claim
    label = f"epsilon {of}".strip()
    rows = [(label, "none: no guarantee")]
    if not math.isinf(guarantee.epsilon):
        shown = f"{figure(guarantee.epsilon)}  at delta {guarantee.delta:g}"
        rows = [(label, f"{shown}, for {ONE[guarantee.unit]} ({guarantee.relation})")]
    if not math.isinf(guarantee.epsilon) and guarantee.delta > _LARGE_DELTA:
        said = f"delta {guarantee.delta:g} is large: with such a probability nothing is promised"
        rows.append(("caution", f"{said}. Give a smaller one, such as --delta 1e-5"))
    if claim is not None and claim.epsilon is not None:
        rows.append(("claimed epsilon", f"{figure(claim.epsilon)}  ({claim.source})"))
    rows += [("void", reason) for reason in certificate.void_because]
    return rows


def _plan_rows(planned: Plan, certificate: Certificate) -> list[tuple[str, str]]:
    from graphveil.privacy.guarantee import ONE

    rows, details, facts = _cost_rows(certificate), planned.details, planned.facts
    if "sensitivity" in details:
        hops = f"{details['hops']:g} hop{'s' if details['hops'] > 1 else ''}"
        rows += [
            (
                "noisy sums",
                f"{hops}; {ONE[planned.unit]} moves each by at most {details['sensitivity']:.4g}, "
                f"noise {details['noise_multiplier'] * details['sensitivity']:.4g} on every entry",
            ),
            *[
                (f"for the {name.removesuffix('_share')}", f"{share:.0%} of the budget")
                for name, share in details.items()
                if name.endswith("_share")
            ],
            *(
                [("private steps", f"{details['steps']:g} a part, each drawing {_drawn(details)}")]
                if "steps" in details
                else []
            ),
            ("parameters", f"{details['parameters']:,}"),
        ]
    elif details:
        influence = f"{ONE[planned.unit]} removes {_terms(details['removed'])} and alters "
        ratio = details["signal_to_noise"]
        rows += [
            ("noise multiplier", f"{details['noise_multiplier']:.6g}"),
            ("influence", f"{influence}{details['altered']:g} more"),
            ("steps", f"{details['steps']:g}, each drawing {_drawn(details)}"),
            *_structure_rows(details),
            ("parameters", f"{details['parameters']:,}"),
            ("signal to noise", f"at most {ratio:.3g} in a step; far below 1 little is learned"),
        ]
    rows.append(
        (
            "planned for",
            f"{facts.num_nodes:,} {facts.record}s, {facts.num_train:,} to train on, "
            f"{facts.num_features:,} features, {facts.num_classes} classes",
        )
    )
    return rows


def _structure_rows(details: Any) -> list[tuple[str, str]]:
    """What the choice of neighbours gets, and what can come of it; of dpar alone."""
    if "right_choice" not in details:
        return []
    share, chance = details["structure_share"], f"{details['right_choice']:.3g}"
    said = (
        f"{share:.0%} of the budget; the one node that matters to a row would be its first choice "
        f"with probability {chance}"
        if share
        else "no budget: with all of it the one node that matters to a row would be its first "
        f"choice with probability {chance}. It is read in prediction"
    )
    rows = [("structure", said), ("rows", f"{details['rows']:,} training nodes")]
    if details["graph_rate"] < 1:
        rows.append(("sample", f"each node takes part with probability {details['graph_rate']:g}"))
    return rows


def _terms(count: float) -> str:
    return f"{count:g} loss term{'' if count == 1 else 's'}"


def _drawn(details: Any) -> str:
    if "batch_size" in details:
        return f"exactly {details['batch_size']:,} terms"
    return f"terms at rate {details['sample_rate']:g}"


# --- train ----------------------------------------------------------------------------------------


@click.command(epilog=f"METHOD: {METHOD_NAMES}.")
@click.argument("method", required=False)
@_data
@root_option
@_epsilon
@delta_option
@click.option("--out", help="The directory of the run.")
@click.option("--seed", type=int, help="Draws split and first weights, never noise. Default: 0.")
@split_option
@classes_option
@directed_option
@set_option
@_config
@ledger_option
@account_option
@force_option
@click.option("--resume", is_flag=True, help="Go on with a run that was killed.")
@click.option(
    "--private-losses",
    is_flag=True,
    default=None,
    help="Write the loss of every step, for your eyes only.",
)
@json_option
@notices()
def train(
    method: str | None,
    config: str | None,
    sets: tuple[str, ...],
    force: bool,
    resume: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Train a model and write it with its certificate and its metrics.

    \b
    graphveil train dp-gnn --data social --epsilon 8 --out runs/social
    graphveil train --config run.toml --seed 1 --out runs/second
    """
    asked = merged(config, {"method": method, **given}, sets)
    kind = method_named(asked.get("method"))
    for name in ("data", "out"):
        if not asked.get(name):
            raise click.UsageError(f"Missing option '--{name}'.")
    seed = asked.get("seed", 0)
    settings = made(
        kind,
        asked["settings"],
        epsilon=asked.get("epsilon"),
        delta=asked.get("delta"),
        seed=seed,
    )
    from graphveil import runs
    from graphveil.data.classes import UNNAMED

    known: dict[str, Any] = {
        name: asked.get(name) for name in ("root", "split", "classes", "directed")
    }
    source = runs.Source(data=asked["data"], seed=seed, **known)
    runs.check(asked["out"], resume=resume, force=force)
    ledger, account = asked.get("ledger"), asked.get("account")
    if account is not None and ledger is None and not resume:
        raise click.UsageError("'--account' needs '--ledger': the file that the account is in.")
    expected = source.expected()
    if expected is not None and ledger is None:
        settings.plan(expected)  # a bad setting is refused before any data is touched
    metrics = runs.train(
        settings,
        None,
        asked["out"],
        source,
        resume=resume,
        force=force,
        ledger=ledger,
        account=account,
        progress=bar(f"training {kind.name}"),
        notify=say,
        private_losses=bool(asked.get("private_losses")),
    )
    certificate = settings.certificate_
    result = {
        "method": kind.name,
        "data": source.data,
        "seed": seed,
        "test_accuracy": metrics["test_accuracy"],
        "test_macro_f1": metrics["test_macro_f1"],
        **_cost(certificate),
        "seconds": metrics["seconds"],
        "out": asked["out"],
        "ledger": runs.charged_to(asked["out"]),
    }
    accuracy = metrics["test_accuracy"]
    rows = [
        ("test accuracy", "no labelled record" if accuracy is None else f"{accuracy:.2%}"),
        *_score_rows(metrics),
        *_cost_rows(certificate),
        *ledger_rows(result["ledger"]),
        ("seconds", f"{metrics['seconds']:.1f}"),
        ("written to", f"{asked['out']}: certificate.txt says what is promised, and to whom"),
    ]
    if UNNAMED in certificate.public:
        rows.append(("classes", "class numbers only; to publish names: --classes a,b,c"))
    if accuracy is not None:
        rows.append(("note", f"The accuracy was {metrics['note']}."))
    if asked.get("private_losses"):
        rows.append(("for you only", f"{runs.LOSSES}: no certificate covers it; do not share it"))
    show(result, as_json, f"{kind.name} on {source.data}", rows)


def ledger_rows(charged: dict[str, str] | None) -> list[tuple[str, str]]:
    """Whom a run was charged to, if there is a ledger."""
    if charged is None:
        return []
    return [("charged to", f"account {charged['account']!r} of {charged['ledger']}")]


def _score_rows(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """What is worth a line beside the accuracy: of two classes the ranking, of more the mean."""
    name = "macro_f1" if metrics["test_sensitivity"] is None else "roc_auc"
    value = metrics[f"test_{name}"]
    label = {"macro_f1": "macro F1", "roc_auc": "ROC AUC"}[name]
    return [] if value is None else [(label, f"{value:.3f}")]


# --- predict --------------------------------------------------------------------------------------


@click.command()
@click.argument("run")
@click.option("--data", required=True, help="A name of the catalog, or a path.")
@root_option
@click.option(
    "--mode",
    type=click.Choice(["cached", "visible", "noisy", "disjoint"]),
    help="visible: neighbours are read in the open. noisy: through noise, for --epsilon more. "
    "disjoint: --data is another graph than the one trained on. cached: the noisy sums that gap "
    "made in training, at no cost; --data is the graph trained on. Default: cached for gap, "
    "visible for the others.",
)
@click.option("--epsilon", type=float, help="What a noisy prediction may spend.")
@click.option("--out", help="A CSV file; without it the table goes to stdout.")
@ledger_option
@account_option
@force_option
@json_option
def predict(
    run: str,
    data: str,
    root: str | None,
    mode: str | None,
    epsilon: float | None,
    out: str | None,
    ledger: str | None,
    account: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """The class of every node, or of every graph, by a trained model.

    A noisy prediction is charged to the run's certificate before anything is written, and to the
    account that the run was charged to, if there is one, before data is opened.

    \b
    graphveil predict runs/social --data social --out classes.csv
    """
    from graphveil import runs

    if out is not None:
        check_file(out, force)
    if mode == "noisy" and epsilon is None:
        raise click.UsageError("The mode 'noisy' spends a budget of its own: give --epsilon.")
    if mode == "disjoint":
        runs.state_of_run(run)
        _check_another_graph(data, runs.trained_on(run))
    if mode is None:
        _check_same_graph(data, run)
    charged: dict[str, str] = {}
    method, probabilities = runs.predict(
        run,
        lambda: runs.load_for(run, data, root),
        mode=mode,
        epsilon=epsilon,
        ledger=ledger,
        account=account,
        on_charge=charged.update,
        notify=say,
    )
    mode = mode or method.modes[0]
    chances, classes = probabilities.max(1)
    names, ids = runs.class_names(run), _ids(data, method.record)
    table = [
        [
            str(number) if ids is None else ids[number],
            int(found),
            *([] if names is None else [names[int(found)]]),
            round(float(chance), 6),
        ]
        for number, (found, chance) in enumerate(zip(classes, chances, strict=True))
    ]
    columns = ["id", "class", *([] if names is None else ["name"]), "probability"]
    seen_by = _seen_by(method, mode)
    result = {
        "run": run,
        "data": data,
        "mode": mode,
        f"{method.record}s": len(table),
        **_cost(method.certificate_),
        "seen_by": seen_by,
        "out": out,
        "ledger": charged or None,
    }
    of, promise, private = _of_file(method, mode)
    if out is not None:
        runs.write_text(out, _csv(columns, table), private=private)
    elif as_json:
        result["predictions"] = [dict(zip(columns, row, strict=True)) for row in table]
    else:
        click.echo(_csv(columns, table), nl=False)
        say(seen_by)
        say(f"of this table: {promise}")
        for label, value in ledger_rows(charged or None):
            say(f"{label} {value}")
        return
    rows = [
        (f"{method.record}s", f"{len(table):,}"),
        *_cost_rows(method.certificate_, of),
        *ledger_rows(charged or None),
        ("mode", seen_by),
        ("of this file", promise),
        ("written to", str(out)),
    ]
    show(result, as_json, f"Predictions of {method.name}, {mode}", rows)


def _check_another_graph(data: str, trained_on: str) -> None:
    """Refuse 'disjoint' on the graph trained on, where the name alone tells."""
    from graphveil.data.catalog import CATALOG

    if data.partition(":")[0] in CATALOG:
        if data == trained_on:
            raise InvalidInputError(
                "The mode 'disjoint' must have another graph than the one trained on. Got "
                f"{data!r} again; use the mode 'visible' or 'noisy'."
            )
    elif at_home(data).absolute() == at_home(trained_on).absolute():
        say(
            f"the run was trained on {data}, too: 'disjoint' is true only if another graph is "
            "there now; otherwise use the mode 'visible' or 'noisy'."
        )


def _check_same_graph(data: str, run: str) -> None:
    """Refuse to read a cache for a graph of another name, unless the mode is asked for."""
    from graphveil import runs

    if runs.state_of_run(run) != "finished" or not runs.has_cache(run):
        return
    trained_on = runs.trained_on(run)
    places = [at_home(each).absolute() for each in (data, trained_on)]
    if data != trained_on and places[0] != places[1]:
        raise InvalidInputError(
            f"The run {run} has noisy sums for the nodes of {trained_on!r}, in their order. Got "
            f"{data!r} instead; for another graph name a --mode: noisy, visible or disjoint "
            "(cached says that it is the same one under another name)."
        )


def _seen_by(method: Method, mode: str) -> str:
    from graphveil.methods.private import INFERENCE

    promised = method.plan_.inference
    return promised[0] if mode == method.modes[0] and promised else INFERENCE[mode]


def _of_file(method: Method, mode: str) -> tuple[str, str, bool]:
    """What epsilon is of, what holds of a file of predictions, and whether it is private."""
    unit = method.certificate_.guarantee.unit
    if mode in ("cached", "noisy"):
        of = "of weights and noisy sums" if mode == "cached" else "of weights and noisy predictions"
        if unit == "node":
            return of, "each prediction is for its own node only", True
        return of, "this epsilon covers it", mode == "noisy"
    read = "edges that" if unit.startswith("edge") else f"{method.record}s whose rows"
    said = f"nothing is promised to the {read} were read; it is for whoever may see those rows"
    return "of the weights", said.replace("those rows", "them") if "edges" in read else said, True


def _ids(data: str, record: str) -> list[str] | None:
    """The ids as the user's own table has them; None where nodes or graphs are numbered from 0."""
    from graphveil.data import files, graph_tables
    from graphveil.data.catalog import CATALOG

    if data.partition(":")[0] in CATALOG or not at_home(data).is_dir():
        return None
    return graph_tables.graph_ids(data) if record == "graph" else files.node_ids(data)


def _csv(columns: list[str], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def check_file(path: str, force: bool) -> None:
    """Refuse a file that is there, or cannot be; before anything is spent on it."""
    file = Path(path)
    if file.is_dir() or (file.exists() and not force):
        raise InvalidInputError(
            f"{path} exists and is not written over; choose another name, or use --force."
        )
    parent = file.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{path} cannot be written: {parent} is no writable directory.")


def check_page(path: str, force: bool) -> None:
    """Refuse a page that cannot be written; before anything is read or planned."""
    if Path(path).suffix not in (".html", ".htm"):
        raise InvalidInputError(f"A page must end in .html. Got {path!r} instead.")
    check_file(path, force)


def write_json(path: str, result: dict[str, Any]) -> None:
    """One JSON object as a file."""
    from graphveil import runs
    from graphveil.cli._shared import finite

    runs.write_text(path, json.dumps(finite(result), indent=2) + "\n")
