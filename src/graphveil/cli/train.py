"""Train a run."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from graphveil import devices, processes
from graphveil.cli import _choosing, _output, _runs, _settings
from graphveil.cli import _options as option
from graphveil.cli._metrics import add_figures
from graphveil.cli._notices import notices
from graphveil.cli._output import Result, bar, say

if TYPE_CHECKING:
    from graphveil.methods import Facts, Method
    from graphveil.runs import Run, Source


@click.command(cls=_settings.MethodCommand)
@click.argument("method", required=False, shell_complete=option.complete_method)
@click.option("--epsilon", type=float, help="What may be spent.")
@option.delta
@_choosing.questions
@option.run
@option.device
@option.force
@click.option("--resume", is_flag=True, help="Go on with a run that was killed.")
@click.option(
    "--private-losses",
    is_flag=True,
    default=None,
    help="Write the loss of every step, for your eyes only.",
)
@click.option(
    "--rank-timeout",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    default=processes.TIMEOUT,
    metavar="SECONDS",
    help="How long one of several processes (torchrun) waits for another.",
)
@option.as_json
def train(
    method: str | None,
    config: str | None,
    sets: tuple[str, ...],
    force: bool,
    resume: bool,
    rank_timeout: float,
    as_json: bool,
    **given: Any,
) -> None:
    """A model, its certificate and its metrics, in a directory.

    \b
    graphveil train dp-gnn --data social --epsilon 8 --out runs/social
    graphveil train auto --data social --epsilon 8 --out runs/chosen
    graphveil train --config run.toml --seed 1 --out runs/second
    graphveil train --recipe igamberdiev-split10-adam --data cora:full --out runs/third
    """
    with _joined(rank_timeout):
        asked = _settings.merge(config, {"method": method, **given}, sets, _choosing.CONFIG)
        if sys.stderr.isatty() and not as_json and {"method", "data"} <= asked.keys():
            say(f"training {asked['method']} on {asked['data']}")  # loading torch takes seconds
        with devices.use(asked.get("device")):
            result = _train(asked, resume, force, say_choice=not as_json)
        if result is not None:
            result.show(as_json)


@contextlib.contextmanager
def _joined(timeout: float) -> Iterator[None]:
    """Train with the processes that were started beside this one, if there are any."""
    try:
        with processes.join(timeout):
            yield
    except processes.LostRankError as error:
        # Whoever started the processes ends the rest now; one of them says why first.
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name) and threading.current_thread() is threading.main_thread():
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        place = processes.place()
        _output.quiet = place is not None and place.rank > (1 if error.lost == 0 else 0)
        raise


@notices()
def _train(asked: dict[str, Any], resume: bool, force: bool, say_choice: bool) -> Result | None:
    if asked.get("method") == _choosing.AUTO:
        _settings.require(asked, "data", "out")
    asked, choice = _choosing.resolve(asked, lambda: _know(asked))
    if choice is not None and say_choice:
        say(_choosing.describe(choice))
    kind = _settings.method_named(asked.get("method"), or_recipe=True)
    _settings.require(asked, "data", "out")
    method = _settings.make_asked(kind, asked)

    from graphveil import runs

    source = _runs.make_source(asked)
    run = runs.Run(asked["out"])
    first = processes.current().first
    if first:
        run.check(resume=resume, force=force)
    if first and not resume:
        _runs.check_account(asked)
    metrics = run.train(
        method,
        source,
        resume=resume,
        force=force,
        ledger=asked.get("ledger"),
        account=asked.get("account"),
        progress=bar(f"training {kind.name}"),
        notify=say,
        private_losses=bool(asked.get("private_losses")),
    )
    if not first:
        return None
    return _describe(run, method, source, metrics, asked, choice)


def _describe(
    run: Run,
    method: Method,
    source: Source,
    metrics: dict[str, Any],
    asked: dict[str, Any],
    choice: Any,
) -> Result:
    """What a command says of a trained run."""
    from graphveil import runs
    from graphveil.graph.public_lines import class_source

    certificate, name = method.certificate_, method.name
    result = Result(f"{name} on {source.data}", method=name, data=source.data, seed=source.seed)
    if choice is not None:
        result.add("why", list(choice.why))
    add_figures(result, metrics, weighs=method.class_weights is not None)
    _runs.add_cost(result, certificate)
    _runs.add_ledger(result, run.charged_to())
    result.add("seconds", metrics["seconds"], "seconds", "{:.1f}".format)
    _runs.add_out(result, asked["out"])
    if class_source(certificate.public) == "names":
        result.row("classes", "class numbers only; to publish names: --classes a,b,c")
    if metrics[f"test_{metrics['metric']}"] is not None:
        result.row("note", f"The figures were {metrics['note']}.")
    if asked.get("private_losses"):
        result.row("for you only", f"{runs.LOSSES}: no certificate covers it; do not share it")
    return result


def _know(asked: dict[str, Any]) -> Facts:
    """What is public of the data to train on; files of one's own are read for it."""
    from graphveil.methods import Facts

    source = _runs.make_source(asked)
    return source.expected() or Facts.of(source.arrange(source.load()).training)
