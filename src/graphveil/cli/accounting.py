"""What privacy costs, without any data: account, calibrate, claims."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil._inputs import TEXT, json_of, read_text
from graphveil.cli._shared import account_rows, figure, json_option, show

if TYPE_CHECKING:
    import dp_accounting as dpa

_delta = click.option(
    "--delta", type=float, required=True, help="Below 1/n for n people, e.g. 1e-6."
)
_removed = click.option(
    "--removed",
    type=int,
    default=1,
    show_default=True,
    help="Loss terms that vanish when one unit is withheld.",
)
_altered = click.option(
    "--altered",
    type=int,
    default=0,
    show_default=True,
    help="Further loss terms that change: K + ... + K^L for an L-layer network with sender cap K.",
)


def _step(
    *,
    rate: float | None,
    removed: int,
    altered: int,
    noise_multiplier: float,
    population: int | None = None,
    batch: int | None = None,
) -> dpa.DpEvent:
    from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

    if population is not None or batch is not None:
        return RevealedCountGaussianDpEvent(
            noise_multiplier=noise_multiplier,
            removed=removed,
            altered=altered,
            rate=rate,
            population=population,
            batch=batch,
        )
    if rate is None:
        raise InvalidInputError(
            "Say how batches are drawn: --rate for Poisson batches, or --population and --batch "
            "for batches of a fixed size."
        )
    return SampledGaussianDpEvent(
        rate=rate, noise_multiplier=noise_multiplier, removed=removed, altered=altered
    )


def _read_event(path: str) -> Any:
    """The JSON value in a file, or on stdin."""
    try:
        return json_of(sys.stdin.read(TEXT) if path == "-" else read_text(path))
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InvalidInputError(f"{path} holds no event: {str(error).rstrip('.')}.") from None


# --- account --------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--rate", type=float, help="Probability with which each loss term is drawn (Poisson)."
)
@click.option("--population", type=int, help="Fixed-size batches: terms to draw from.")
@click.option("--batch", type=int, help="Fixed-size batches: terms in a batch.")
@_removed
@_altered
@click.option(
    "--noise-multiplier",
    type=float,
    help="Standard deviation of the noise, in units of the clipping bound.",
)
@click.option(
    "--steps", type=int, default=1, show_default=True, help="How often the step is taken."
)
@click.option(
    "--event",
    "event_file",
    help="Price an event tree read from a JSON file (- for stdin) instead of a step.",
)
@_delta
@json_option
def account(
    event_file: str | None,
    steps: int,
    delta: float,
    as_json: bool,
    noise_multiplier: float | None,
    **step: Any,
) -> None:
    """Price a training run: epsilon by PLD and by RDP, and the smaller of them.

    Each step draws every loss term with probability RATE, clips its gradient, sums, and adds
    Gaussian noise. Withholding one unit removes some terms and alters others.

    \b
    graphveil account --rate 0.11 --altered 7 --noise-multiplier 16 --steps 1000 --delta 1e-6
    """
    from graphveil.privacy.accounting import account as price
    from graphveil.privacy.events import from_json, repeated, to_json

    if event_file is not None:
        if noise_multiplier is not None or any(step[key] is not None for key in _BATCHES):
            raise click.UsageError("'--event' takes the place of the options that describe a step.")
        event = from_json(_read_event(event_file))
    elif noise_multiplier is None:
        raise click.UsageError("Missing option '--noise-multiplier' (or '--event').")
    else:
        event = _step(noise_multiplier=noise_multiplier, **step)
    event = repeated(event, steps)
    priced = price(event, delta)
    result = {
        "epsilon": priced.epsilon,
        "pld": priced.pld,
        "rdp": priced.rdp,
        "delta": priced.delta,
        "notes": list(priced.notes),
        "event": to_json(event),
    }
    show(result, as_json, "What the run costs", account_rows(priced))


_BATCHES = ("rate", "population", "batch")


# --- calibrate ------------------------------------------------------------------------------------


@click.command()
@click.option("--epsilon", type=float, required=True, help="The budget.")
@click.option(
    "--rate", type=float, help="Probability with which each loss term is drawn (Poisson)."
)
@_removed
@_altered
@click.option("--noise-multiplier", type=float, help="Noise, in units of the clipping bound.")
@click.option("--steps", type=int, help="How often the step is taken.")
@_delta
@json_option
def calibrate(
    epsilon: float,
    delta: float,
    removed: int,
    altered: int,
    as_json: bool,
    **given: float | None,
) -> None:
    """Find the noise, the steps or the rate that fit a budget.

    Give two of --noise-multiplier, --steps and --rate; the third is the answer: the least noise,
    the most steps, or the largest rate.

    \b
    graphveil calibrate --epsilon 8 --rate 0.3 --steps 150 --delta 1e-5
    """
    from graphveil.privacy.accounting import account as price
    from graphveil.privacy.accounting import calibrate as search
    from graphveil.privacy.events import repeated

    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise click.UsageError(
            "Give exactly two of --noise-multiplier, --steps and --rate, to find the third. Got "
            f"{3 - len(missing)}."
        )
    sought = missing[0]

    def run(value: float) -> dpa.DpEvent:
        settings: dict[str, Any] = {**given, sought: value}
        steps = settings.pop("steps")
        return repeated(_step(removed=removed, altered=altered, **settings), steps)

    safe, risky = _SEARCHED[sought]
    value = search(
        run, epsilon=epsilon, delta=delta, safe=safe, risky=risky, integer=sought == "steps"
    )
    priced = price(run(value), delta)
    result = {
        **given,
        sought: value,
        "epsilon": priced.epsilon,
        "target_epsilon": epsilon,
        "pld": priced.pld,
        "rdp": priced.rdp,
        "delta": priced.delta,
    }
    shown = f"{value:,}" if sought == "steps" else f"{value:.6g}"
    rows = [(sought.replace("_", " "), shown), *account_rows(priced)]
    if value == risky:
        rows.append(("note", "This is as far as is searched; the budget leaves room for more."))
    show(result, as_json, "What fits the budget", rows)


# The ends between which an answer is sought: what spends least, and what spends most.
_SEARCHED: dict[str, tuple[float, float]] = {
    "noise_multiplier": (1e7, 1e-2),
    "steps": (1, 10_000_000),
    "rate": (1e-9, 1.0),
}


# --- claims ---------------------------------------------------------------------------------------


@click.group()
def claims() -> None:
    """What a paper prints for a setting, beside what can be proven for it.

    A claimed figure is the published formula's and never a guarantee; so is any other that has
    "claim" in its name. The proven one assumes what the note says.
    """


_HELP: dict[str, tuple[Any, str]] = {
    "nodes": (int, "Training nodes."),
    "graphs": (int, "Training graphs."),
    "batch": (int, "Loss terms in a batch."),
    "max-degree": (int, "Cap on the messages of a node (K or D)."),
    "noise-ratio": (float, "The paper's sigma / (2 (K + 1) C)."),
    "noise-multiplier": (float, "Noise, in units of the clipping bound or of one message."),
    "mechanism": (click.Choice(["gm", "em0", "em1"]), "How rows are made private."),
    "rows": (int, "Private rows (M)."),
    "neighbours": (int, "Names chosen in a row (K), for em0 and em1."),
    "value-noise": (float, "Laplace scale of em1's values, in units of the clipping bound."),
    "steps": (int, "Training steps."),
    "splits": (int, "Groups the graph is split into; 1 is the whole graph."),
    "hops": (int, "Aggregation hops."),
    "unit": (click.Choice(["edge", "node"]), "What is protected."),
    "directed": (bool, "Edges are directed: one message each instead of two."),
    "weighting": (click.Choice(["similarity", "attention"]), "How messages are weighted."),
    "encoder-noise": (float, "Noise multiplier of the encoder's DP-SGD (unit node)."),
    "classifier-noise": (float, "Noise multiplier of the classifier's DP-SGD (unit node)."),
    "attention-noise": (float, "Noise multiplier of the attention's DP-SGD."),
    "attention-steps": (int, "Steps of the attention's DP-SGD."),
    "rate": (float, "Sampling rate of DP-SGD."),
    "epsilon": (float, "The epsilon the paper prints."),
    "graph-rate": (float, "Probability with which a node is kept in the sampled graph."),
    "delta": (float, "The delta of the guarantee."),
}

# Paper: what it is about, the options it needs, the options it takes.
_PAPERS = {
    "daigavane": (
        "Node-level DP-GNN: Theorem 1 for one layer.",
        "nodes batch max-degree noise-ratio steps delta",
        "",
    ),
    "igamberdiev": (
        "Graph splits for text: the moments accountant of Table 3.",
        "noise-multiplier steps splits delta",
        "",
    ),
    "mueller": (
        "Graph classification: Opacus's RDP accountant.",
        "graphs batch noise-multiplier steps delta",
        "",
    ),
    "gap": (
        "GAP: noisy aggregation over hops.",
        "hops noise-multiplier delta",
        "unit directed max-degree encoder-noise classifier-noise rate steps",
    ),
    "shpilevskiy": (
        "GAP with weighted messages.",
        "weighting hops noise-multiplier delta",
        "unit directed attention-noise attention-steps rate max-degree encoder-noise "
        "classifier-noise steps",
    ),
    "dpar": ("DPAR: the sampling rate times epsilon.", "epsilon graph-rate", "delta"),
    "dpar-rows": (
        "DPAR's private rows, before sampling: Theorems 1 and 3, Corollary 1.",
        "mechanism noise-multiplier rows delta",
        "neighbours value-noise",
    ),
}


def _claim_command(name: str, summary: str, needed: str, optional: str) -> click.Command:
    def command(as_json: bool, **settings: Any) -> None:
        from graphveil.privacy.claims import CLAIMS

        claim = CLAIMS[name](**{key: value for key, value in settings.items() if value is not None})
        result = {
            "claimed_epsilon": claim.claimed_epsilon,
            "proven_epsilon": claim.proven_epsilon,
            **claim.further,
            "delta": claim.delta,
            "paper": claim.paper,
            "formula": claim.formula,
            "flaw": claim.flaw,
            "as_run": claim.as_run,
            "proven_note": claim.proven_note,
        }
        proven = "none" if claim.proven_epsilon is None else figure(claim.proven_epsilon)
        rows = [
            ("claimed epsilon", f"{claim.claimed_epsilon:.4g}  ({claim.paper})"),
            ("proven epsilon", proven),
            *((name.replace("_", " "), f"{value:.4g}") for name, value in claim.further.items()),
            ("formula", claim.formula),
            ("flaw", claim.flaw),
            *([] if claim.as_run is None else [("as run", claim.as_run)]),
            ("proven for", claim.proven_note),
        ]
        show(result, as_json, "Claimed and proven", rows)

    options: list[click.Parameter] = []
    for option in [*needed.split(), *optional.split()]:
        kind, text = _HELP[option]
        flag = {"is_flag": True, "default": None} if kind is bool else {"type": kind}
        required = option in needed.split()
        options.append(click.Option([f"--{option}"], required=required, help=text, **flag))
    options.append(
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON object on stdout.")
    )
    return click.Command(name, callback=command, params=options, help=summary)


for _name, _paper in _PAPERS.items():
    claims.add_command(_claim_command(_name, *_paper))
