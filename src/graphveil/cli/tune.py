"""Choose a method's settings by trials that are charged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil._schema import NUMBER, Schema
from graphveil.cli import _options as option
from graphveil.cli import _runs, _settings
from graphveil.cli._metrics import add_figures
from graphveil.cli._notices import notices
from graphveil.cli._output import Result, bar, figure, say

if TYPE_CHECKING:
    from graphveil.methods import Method
    from graphveil.runs import Arranged, Source
    from graphveil.tuning import Tuning, Winner

_CONFIG: Schema = {
    "vary": dict,
    **dict.fromkeys(("trials", "score_share"), NUMBER),
    **dict.fromkeys(("public_validation", "fixed"), bool),
    **dict.fromkeys(("public_data", "sampler", "law", "metric"), str),
}
_SCORED = {
    "private": "on private validation records, through noise of {noise:.2%}; charged with the "
    "trials",
    "public-validation": "on validation records, declared public; the trainings are charged",
    "public-data": "on {public_data}, declared public; nothing is charged for choosing",
}


@click.command(cls=_settings.MethodCommand)
@click.argument("method", required=False, shell_complete=option.complete_method)
@click.option("--epsilon", type=float, help="What the whole may spend, all trials included.")
@option.delta
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
@click.option(
    "--metric",
    help="What scores on public records or data go by, such as macro_f1, average_precision, r2. "
    "Default: right answers, as private scores.",
)
@option.run
@click.option(
    "--jobs",
    type=int,
    metavar="N",
    help="Processes that share the trials, on public data (--public-data) alone: elsewhere they "
    "would tell how many trials there are.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Refused: shards would tell how many trials there are. Settings are sought by several "
    "machines with 'graphveil sweep --shard' on public data.",
)
@option.force
@option.as_json
@notices()
def tune(
    method: str | None,
    config: str | None,
    sets: tuple[str, ...],
    vary: tuple[str, ...],
    jobs: int | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Settings chosen by trials that are charged: one run with one certificate.

    \b
    graphveil tune dp-mlp --data social --epsilon 2 --trials 10 \\
        --vary learning_rate=0.002..0.2 --vary max_grad_norm=0.1..2 --out runs/tuned
    graphveil tune dp-mlp --data pubmed --epsilon 2 --trials 20 --public-data social \\
        --vary learning_rate=0.002..0.2 --out runs/tuned
    """
    _refuse_shard(given.pop("shard"))
    asked = _settings.merge(config, {"method": method, **given}, sets, _CONFIG)
    tuning = _tuning(asked, vary)
    _settings.require(asked, "data", "out")

    from graphveil import runs
    from graphveil.tuning import check_jobs_of, require_optuna

    jobs = 1 if jobs is None else jobs
    check_jobs_of(tuning, jobs)
    require_optuna(tuning.sampler)
    runs.check_search(runs.Run(asked["out"]), force=force)
    source = _runs.make_source({**asked, "seed": tuning.seed})
    _runs.check_account(asked)
    where = {key: asked.get(key) for key in ("ledger", "account")} | {"force": force}
    search = _search_charged
    if tuning.scores == "public-data":
        search = partial(_search_public, jobs=jobs)
    tuned, metrics, winner, trial_epsilon = search(tuning, source, asked["out"], where)
    certificate = tuned.certificate_
    result = Result(
        f"{tuned.name} tuned on {source.data}",
        method=tuned.name,
        data=source.data,
        seed=tuning.seed,
        scores=tuning.scores,
        validation_accuracy=winner.score,
        delta=certificate.guarantee.delta,
        void_because=list(certificate.void_because),
    )
    result.add("chosen", winner.candidate, "chosen", _settings_text)
    add_figures(result, metrics, weighs=tuned.class_weights is not None)
    guarantee = certificate.guarantee
    result.add("epsilon", guarantee.epsilon, "epsilon", lambda _: _runs.price(guarantee))
    _runs.add_ledger(result, runs.Run(asked["out"]).charged_to())
    result.update({"trial_epsilon": trial_epsilon})
    result.row("each trial", f"trained at epsilon {figure(trial_epsilon)}")
    # Noise as large as what settings differ by chooses at random.
    scored = _SCORED[tuning.scores]
    result.add(
        "validation_noise",
        winner.noise,
        "scored",
        lambda noise: scored.format(public_data=tuning.public_data, noise=noise),
    )
    _runs.add_out(result, asked["out"])
    result.row("note", f"The figures were {metrics['note']}.")
    result.show(as_json)


def _settings_text(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}"
        for key, value in settings.items()
    )


def _tuning(asked: dict[str, Any], vary: tuple[str, ...]) -> Tuning:
    """What was asked for, checked as far as it can be without data."""
    kind = _settings.method_named(asked.get("method"))
    _settings.require(asked, "epsilon", "trials")
    from graphveil.tuning import Tuning, values_of

    tried = dict(asked.get("vary", {}))
    for pair in vary:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(
                f"Write '--vary' as KEY=VALUES, e.g. learning_rate=0.001..0.1. Got {pair!r}."
            )
        tried[key.strip()] = text
    varied = {key: values_of(key, values) for key, values in tried.items()}
    if asked.get("public_validation") and asked.get("public_data"):
        raise click.UsageError("Give either '--public-validation' or '--public-data', not both.")
    scores = "public-validation" if asked.get("public_validation") else "private"
    if asked.get("public_data"):
        scores = "public-data"
        _check_another(asked["public_data"], asked.get("data"))
    optional = ("fixed", "law", "sampler", "score_share", "public_data", "seed", "delta", "metric")
    tuning = Tuning(
        method=kind.name,
        vary=varied,
        trials=asked["trials"],
        epsilon=asked["epsilon"],
        settings=_settings.check_settings(kind, asked["settings"]),
        scores=scores,
        **{key: asked[key] for key in optional if asked.get(key) is not None},
    )
    for key, values in varied.items():
        for value in values.looked_at:
            _settings.check_setting(kind, key, value)
    return tuning


def _check_another(public: str, private: str | None) -> None:
    """Refuse to declare public what is to be protected, where the name alone tells."""
    if private is not None and _runs.is_same_place(public, private):
        raise InvalidInputError(
            f"'--public-data' must be another data set than '--data'. Got {public!r} twice; what "
            "is public needs no epsilon."
        )


def _refuse_shard(shard: str | None) -> None:
    """Refuse to spread trials over machines, whose jobs could be counted."""
    if shard is not None:
        raise UnprovenError(
            "A tuning run is proven for a number of trials that nobody sees, and jobs can be "
            f"counted. Got --shard {shard}; leave it out, or seek settings on public data with "
            "'graphveil sweep --shard', and train with the best."
        )


# The run, its metrics, the trial that won, and what each trial was trained at.
Tuned = tuple["Method", dict[str, Any], "Winner", float]


def _search_charged(tuning: Tuning, source: Source, out: str, where: dict[str, Any]) -> Tuned:
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

    run, described = runs.Run(out), tuning.describe()
    method, metrics = runs.search_into(run, find, priced, source, described, notify=say, **where)
    return method, metrics, winners[0], float(method.get_params()["epsilon"])


def _search_public(
    tuning: Tuning, source: Source, out: str, where: dict[str, Any], *, jobs: int
) -> Tuned:
    """Trials on public data, then one run on the private data with the whole budget."""
    from graphveil import runs
    from graphveil.tuning import search_openly

    assert tuning.public_data is not None
    expected = source.expected()
    if expected is not None:
        tuning.make(tuning.first).plan(expected)
    stated = (None, None) if _runs.is_cataloged(tuning.public_data) else ("public", source.directed)
    apart = replace(
        source,
        data=tuning.public_data,
        split=None,
        classes=stated[0],
        directed=stated[1],
        schema=None,
    )
    try:
        public = apart.arrange(apart.load())
    except InvalidInputError as error:
        reason = str(error).replace("The 'data' parameter", "it")
        raise InvalidInputError(f"'--public-data': {reason}") from error
    shown = bar(f"tuning {tuning.method}")
    winner = search_openly(tuning, public.training, track=shown, jobs=jobs)
    method = tuning.make(winner.candidate)
    progress = bar(f"training {tuning.method}")
    metrics = runs.Run(out).train(
        method, source, progress=progress, tuning=tuning.describe(), notify=say, **where
    )
    return method, metrics, winner, tuning.epsilon
