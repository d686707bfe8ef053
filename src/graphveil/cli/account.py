"""What a training run costs, and what fits a budget; without any data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil._inputs import TEXT, json_of, read_text
from graphveil.cli import _options as option
from graphveil.cli._output import Result, figure

if TYPE_CHECKING:
    import dp_accounting as dpa

    from graphveil.privacy.accounting import Price

_BATCHES = ("rate", "population", "batch")
# The ends between which an answer is sought: what spends least, and what spends most.
_SEARCHED: dict[str, tuple[float, float]] = {
    "noise_multiplier": (1e7, 1e-2),
    "steps": (1, 10_000_000),
    "rate": (1e-9, 1.0),
}

_rate = click.option(
    "--rate", type=float, help="Probability with which each loss term is drawn (Poisson)."
)
_shared = option.together(
    click.option(
        "--removed", type=int, default=1, help="Loss terms that vanish when one unit is withheld."
    ),
    click.option(
        "--altered",
        type=int,
        default=0,
        help="Further loss terms that change: K + ... + K^L for an L-layer network with sender cap "
        "K.",
    ),
    click.option(
        "--noise-multiplier",
        type=float,
        help="Standard deviation of the noise, in units of the clipping bound.",
    ),
    click.option("--delta", type=float, required=True, help="Below 1/n for n people, e.g. 1e-6."),
    option.as_json,
)


@click.command()
@_rate
@click.option("--population", type=int, help="Fixed-size batches: terms to draw from.")
@click.option("--batch", type=int, help="Fixed-size batches: terms in a batch.")
@click.option("--steps", type=int, default=1, help="How often the step is taken.")
@click.option(
    "--event",
    "event_file",
    help="Price an event tree read from a JSON file (- for stdin) instead of a step.",
)
@_shared
def account(
    event_file: str | None,
    steps: int,
    delta: float,
    as_json: bool,
    noise_multiplier: float | None,
    **step: Any,
) -> None:
    """What a training run costs: epsilon by PLD and by RDP.

    The smaller of the two counts. Each step draws every loss term with probability RATE, clips its
    gradient, sums, and adds Gaussian noise. Withholding one unit removes some terms and alters
    others.

    \b
    graphveil account --rate 0.11 --altered 7 --noise-multiplier 16 --steps 1000 --delta 1e-6
    """
    from graphveil.privacy.accounting import price
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
    result = Result("What the run costs")
    _add_price(result, priced)
    result.update({"notes": list(priced.notes), "event": to_json(event)})
    result.show(as_json)


@click.command()
@click.option("--epsilon", type=float, required=True, help="The budget.")
@_rate
@click.option("--steps", type=int, help="How often the step is taken.")
@_shared
def calibrate(
    epsilon: float, delta: float, removed: int, altered: int, as_json: bool, **given: float | None
) -> None:
    """The noise, the steps or the rate that fit a budget.

    Give two of --noise-multiplier, --steps and --rate; the third is the answer: the least noise,
    the most steps, or the largest rate.

    \b
    graphveil calibrate --epsilon 8 --rate 0.3 --steps 150 --delta 1e-5
    """
    from graphveil.privacy.accounting import calibrate as search
    from graphveil.privacy.accounting import price
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
    result = Result("What fits the budget", **given, target_epsilon=epsilon)
    show = "{:,}".format if sought == "steps" else "{:.6g}".format
    result.add(sought, value, sought.replace("_", " "), show)
    _add_price(result, price(run(value), delta))
    if value == risky:
        result.row("note", "This is as far as is searched; the budget leaves room for more.")
    result.show(as_json)


def _step(
    rate: float | None, population: int | None = None, batch: int | None = None, **step: Any
) -> dpa.DpEvent:
    from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

    if population is not None or batch is not None:
        return RevealedCountGaussianDpEvent(rate=rate, population=population, batch=batch, **step)
    if rate is None:
        raise InvalidInputError(
            "Say how batches are drawn: --rate for Poisson batches, or --population and --batch "
            "for batches of a fixed size."
        )
    return SampledGaussianDpEvent(rate=rate, **step)


def _read_event(path: str) -> Any:
    """The JSON value in a file, or on stdin."""
    try:
        return json_of(sys.stdin.read(TEXT) if path == "-" else read_text(path))
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InvalidInputError(f"{path} holds no event: {str(error).rstrip('.')}.") from None


def _add_price(result: Result, account: Price) -> None:
    """What an event costs, by each bound."""
    result.add(
        "epsilon", account.epsilon, "epsilon", lambda e: f"{figure(e)}  at delta {account.delta:g}"
    )
    result.update({"pld": account.pld, "rdp": account.rdp, "delta": account.delta})
    result.row("by PLD", figure(account.pld))
    result.row("by RDP", figure(account.rdp))
    result.note(*account.notes)
