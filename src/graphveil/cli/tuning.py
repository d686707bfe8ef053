"""Choose a method's settings by trials that are charged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil._schema import NUMBER, Schema
from graphveil.cli._asked import check_setting, merged, method_named
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
from graphveil.cli.training import METHOD_NAMES, ledger_rows

if TYPE_CHECKING:
    from graphveil.methods import Method
    from graphveil.runs import Arranged, Source
    from graphveil.tuning import Tuning, Winner

_CONFIG: Schema = {
    "vary": dict,
    "trials": NUMBER,
    "public_validation": bool,
    "public_data": str,
    "fixed": bool,
    "sampler": str,
    "law": str,
    "score_share": NUMBER,
}
_SAID = {
    "private": "on private validation records, through noise of {noise:.2%}; charged with the "
    "trials",
    "public-validation": "on validation records, declared public; the trainings are charged",
    "public-data": "on {public_data}, declared public; nothing is charged for choosing",
}


@click.command(epilog=f"METHOD: {METHOD_NAMES}; a private one.")
@click.argument("method", required=False)
@click.option("--data", help="A name of the catalog, or a path.")
@root_option
@click.option("--epsilon", type=float, help="What the whole may spend, all trials included.")
@delta_option
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=VALUES",
    help="A setting and what it may be: a list, 50,100,150, or a range, 0.001..0.1 "
    "(logarithmic; 0..0.9:even is not). Repeat.",
)
@click.option("--trials", type=float, help="How many trials, on average: their number is secret.")
@click.option(
    "--public-validation",
    is_flag=True,
    default=None,
    help="Declare the validation records public: scores are exact and cost nothing.",
)
@click.option("--public-data", metavar="NAME", help="Declare a data set public, and choose there.")
@click.option(
    "--fixed",
    is_flag=True,
    default=None,
    help="Exactly --trials trials, each charged in full; for a few, or for optuna.",
)
@click.option("--sampler", type=click.Choice(["random", "optuna"]), help="Default: random.")
@click.option(
    "--law",
    type=click.Choice(["logarithmic", "geometric"]),
    help="Of the secret number. logarithmic (the default) costs less, geometric is less often 1.",
)
@click.option("--score-share", type=float, help="Of a trial's budget, for its score. Default: 0.1.")
@click.option("--out", help="The directory of the run.")
@click.option("--seed", type=int, help="Draws split and first weights, never noise. Default: 0.")
@split_option
@classes_option
@directed_option
@set_option
@click.option(
    "--config", type=click.Path(dir_okay=False), help="A TOML file; the command line wins."
)
@ledger_option
@account_option
@force_option
@json_option
@notices()
def tune(
    method: str | None,
    config: str | None,
    sets: tuple[str, ...],
    vary: tuple[str, ...],
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Try settings, keep the best, and pay for all of it: one run with one certificate.

    \b
    graphveil tune dp-mlp --data social --epsilon 2 --trials 10 \\
        --vary learning_rate=0.002..0.2 --vary max_grad_norm=0.1..2 --out runs/tuned
    graphveil tune dp-mlp --data pubmed --epsilon 2 --trials 20 --public-data social \\
        --vary learning_rate=0.002..0.2 --out runs/tuned
    """
    asked = merged(config, {"method": method, **given}, sets, _CONFIG)
    tuning = _tuning(asked, vary)
    for name in ("data", "out"):
        if not asked.get(name):
            raise click.UsageError(f"Missing option '--{name}'.")

    from graphveil import runs
    from graphveil.tuning import needed

    needed(tuning.sampler)
    runs.check_tuning(asked["out"], force=force)
    known: dict[str, Any] = {
        name: asked.get(name) for name in ("root", "split", "classes", "directed")
    }
    source = runs.Source(data=asked["data"], seed=tuning.seed, **known)
    if asked.get("account") is not None and asked.get("ledger") is None:
        raise click.UsageError("'--account' needs '--ledger': the file that the account is in.")
    where = {key: asked.get(key) for key in ("ledger", "account")} | {"force": force}
    run = _openly if tuning.scores == "public-data" else _charged
    found, metrics, result = run(tuning, source, asked["out"], where)
    certificate = found.certificate_
    guarantee, accuracy = certificate.guarantee, metrics["test_accuracy"]
    result = {
        "method": found.name,
        "data": source.data,
        "seed": tuning.seed,
        "scores": tuning.scores,
        **result,
        "test_accuracy": accuracy,
        "test_macro_f1": metrics["test_macro_f1"],
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "void_because": list(certificate.void_because),
        "out": asked["out"],
        "ledger": runs.charged_to(asked["out"]),
    }
    from graphveil.privacy.guarantee import ONE

    rows = [
        ("chosen", ", ".join(f"{key} = {_short(each)}" for key, each in result["chosen"].items())),
        ("test accuracy", "no labelled record" if accuracy is None else f"{accuracy:.2%}"),
        (
            "epsilon",
            f"{figure(guarantee.epsilon)}  at delta {guarantee.delta:g}, for {ONE[guarantee.unit]} "
            f"({guarantee.relation})",
        ),
        *ledger_rows(result["ledger"]),
        ("each trial", f"trained at epsilon {figure(result['trial_epsilon'])}"),
        ("scored", _scored(tuning, result["validation_noise"])),
        ("written to", f"{asked['out']}: certificate.txt says what is promised, and to whom"),
        ("note", f"The accuracy was {metrics['note']}."),
    ]
    show(result, as_json, f"{found.name} tuned on {source.data}", rows)


def _tuning(asked: dict[str, Any], vary: tuple[str, ...]) -> Tuning:
    """What was asked for, checked as far as it can be without data."""
    kind = method_named(asked.get("method"))
    for name in ("epsilon", "trials"):
        if asked.get(name) is None:
            raise click.UsageError(f"Missing option '--{name}'.")
    from graphveil.tuning import Tuning, values_of

    tried = dict(asked.get("vary", {}))
    for each in vary:
        key, equals, text = each.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(
                f"Write '--vary' as KEY=VALUES, e.g. learning_rate=0.001..0.1. Got {each!r}."
            )
        tried[key.strip()] = text
    varied = {key: values_of(key, values) for key, values in tried.items()}
    if asked.get("public_validation") and asked.get("public_data"):
        raise click.UsageError("Give either '--public-validation' or '--public-data', not both.")
    scores = "public-validation" if asked.get("public_validation") else "private"
    if asked.get("public_data"):
        scores = "public-data"
        _check_another(asked["public_data"], asked.get("data"))
    optional = ("fixed", "law", "sampler", "score_share", "public_data", "seed", "delta")
    tuning = Tuning(
        method=kind.name,
        vary=varied,
        trials=asked["trials"],
        epsilon=asked["epsilon"],
        settings={key: check_setting(kind, key, value) for key, value in asked["settings"].items()},
        scores=scores,
        **{key: asked[key] for key in optional if asked.get(key) is not None},
    )
    for key, values in varied.items():
        for value in values.looked_at:
            check_setting(kind, key, value)
    return tuning


def _check_another(public: str, private: str | None) -> None:
    """Refuse to declare public what is to be protected, where the name alone tells."""
    if private is None:
        return
    places = [at_home(each).absolute() for each in (public, private)]
    if public == private or places[0] == places[1]:
        raise InvalidInputError(
            f"'--public-data' must be another data set than '--data'. Got {public!r} twice; what "
            "is public needs no epsilon."
        )


def _charged(
    tuning: Tuning, source: Source, out: str, where: dict[str, Any]
) -> tuple[Method, dict[str, Any], dict[str, Any]]:
    """Trials on the private data, and their charge."""
    from graphveil import runs
    from graphveil.methods import Facts
    from graphveil.tuning import search

    priced, expected, winners = tuning.priced(), source.expected(), []
    if expected is not None and where["ledger"] is None:
        priced.plan(expected)  # what cannot be had is refused before any data is touched

    def find(arranged: Arranged) -> tuple[Method, dict[str, Any]]:
        planned = priced.planned(Facts.of(arranged.training))
        winners.append(search(planned, arranged.training, track=bar(f"tuning {tuning.method}")))
        scored = {"validation_accuracy": winners[0].score, "validation_noise": winners[0].noise}
        return winners[0].method, scored

    found, metrics = runs.tune(find, priced, out, source, tuning.described(), notify=say, **where)
    epsilon = float(found.get_params()["epsilon"])
    return found, metrics, _result(winners[0], epsilon)


def _openly(
    tuning: Tuning, source: Source, out: str, where: dict[str, Any]
) -> tuple[Method, dict[str, Any], dict[str, Any]]:
    """Trials on public data, then one run on the private data with the whole budget."""
    from graphveil import runs
    from graphveil.data.catalog import CATALOG
    from graphveil.tuning import search_openly

    assert tuning.public_data is not None
    expected = source.expected()
    if expected is not None:
        tuning.made(tuning.first).plan(expected)
    known = tuning.public_data.partition(":")[0] in CATALOG
    stated = (None, None) if known else ("public", source.directed)
    apart = replace(
        source, data=tuning.public_data, split=None, classes=stated[0], directed=stated[1]
    )
    try:
        public = apart.arrange(apart.load())
    except InvalidInputError as error:
        said = str(error).replace("The 'data' parameter", "it")
        raise InvalidInputError(f"'--public-data': {said}") from error
    winner = search_openly(tuning, public.training, track=bar(f"tuning {tuning.method}"))
    method = tuning.made(winner.candidate)
    progress = bar(f"training {tuning.method}")
    metrics = runs.train(
        method, None, out, source, progress=progress, tuning=tuning.described(), notify=say, **where
    )
    return method, metrics, _result(winner, tuning.epsilon)


def _scored(tuning: Tuning, noise: float) -> str:
    """How trials were judged. Noise as large as what settings differ by chooses at random."""
    return _SAID[tuning.scores].format(public_data=tuning.public_data, noise=noise)


def _result(winner: Winner, trial_epsilon: float) -> dict[str, Any]:
    return {
        "chosen": winner.candidate,
        "trial_epsilon": trial_epsilon,
        "validation_accuracy": winner.score,
        "validation_noise": winner.noise,
    }


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
