"""The command line: parse, call, print.

Results go to stdout, everything else to stderr. With ``--json`` stdout holds one JSON object and
nothing else. Exit codes, for every command: 0 done, 1 unexpected, 2 usage or bad input, 3 refused
by a privacy budget or an unproven guarantee, 4 a reproduced figure out of tolerance, 130
interrupted (129 and 143 by SIGHUP and SIGTERM). Who interrupts is told what stays charged, and how
it goes on.

Heavy modules are imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

import click

from graphveil import __version__
from graphveil._errors import GraphveilError
from graphveil.cli import (
    accounting,
    comparing,
    curves,
    data,
    drawing,
    explaining,
    ledger,
    reporting,
    tables,
    training,
    tuning,
)
from graphveil.cli._shared import open_streams, say

EXIT_CODES = (
    "Exit codes: 0 done, 1 unexpected, 2 usage or bad input, 3 refused by a privacy budget or an "
    "unproven guarantee, 4 a reproduced figure out of tolerance, 130 interrupted."
)
_SIGNALS = ("SIGTERM", "SIGHUP")  # which Windows does not have all of


class _Terminated(KeyboardInterrupt):
    """A signal that ends the process, taken as Ctrl-C is: with time to say what is left."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


# What a path or its disk can be, wherever it was given: not a fault of this program.
_OF_PATHS = (
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM,
    errno.EROFS, errno.ENOSPC,
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code; an error is one line on stderr."""
    # Read when torch is loaded. Threads that spin while they wait cost tenfold on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    open_streams()
    try:
        if any("\0" in word for word in (sys.argv if arguments is None else arguments)):
            raise click.UsageError("A word of the command line must not hold a NUL character.")
        with _signals():
            code = cli.main(args=arguments, prog_name="graphveil", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        code = 2
    except click.ClickException as error:
        say(error.format_message())
        code = 2
    except (click.Abort, KeyboardInterrupt) as error:
        ended = error.__cause__ or error  # click hides it
        say(*_interrupted(ended, sys.argv[1:] if arguments is None else arguments))
        code = 128 + (ended.number if isinstance(ended, _Terminated) else signal.SIGINT)
    except GraphveilError as error:
        say(str(error))
        code = error.exit_code
    except Exception as error:
        if os.environ.get("GRAPHVEIL_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno in _OF_PATHS and error.filename:
            say(f"{error.filename} cannot be used: {error.strerror}; check the path.")
            code = 2
        else:
            say(f"unexpected {type(error).__name__}: {error} (GRAPHVEIL_DEBUG=1 shows where)")
            code = 1
    sys.exit(code if isinstance(code, int) else 0)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Have the signals that end a process end a command as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    # What was ignored stays so, as by nohup.
    before = {each: signal.getsignal(each) for each in names}
    taken = [each for each, handler in before.items() if handler == signal.SIG_DFL]
    for each in taken:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, before[each])


def _interrupted(error: BaseException, arguments: Sequence[str]) -> tuple[str, str]:
    """What is left, as whoever stopped says it, and the command that goes on."""
    said = " ".join(getattr(error, "__notes__", ()))
    if "--resume" in said:
        # Right after the command: behind a "--" it would be no option.
        name, *again = (each for each in arguments if each not in ("--force", "--resume"))
        command = shlex.join(["graphveil", name, "--resume", *again])
        return f"interrupted. {said} That is:", command
    return f"interrupted. {said}" if said else "interrupted", ""


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="graphveil")
def cli() -> None:
    """Differential privacy for graph neural networks, with an epsilon that holds.

    \b
    graphveil data        the graphs known by name, and your own
    graphveil plan        what a method will cost, before any data is touched
    graphveil train       a model, its certificate and its metrics, in a directory
    graphveil predict     classes of nodes by a trained model
    graphveil report      a page about runs, to hand on: what is promised, what it costs
    graphveil ledger      what was ever spent on a data set, and what is left
    graphveil compare     all methods on one graph, with the honest baselines
    graphveil tune        settings chosen by trials that are charged
    graphveil sweep       one method under several values of a setting
    graphveil bench       a table of runs, described in TOML, beside published figures
    graphveil curves      the loss on test records while models learn, as a picture
    graphveil tsne        the test nodes as trained models see them, as a picture
    graphveil hard-cases  the test nodes that private and open models get wrong
    graphveil explain     the edges that private and open models of graphs look at
    graphveil account     what a training run costs
    graphveil calibrate   the noise, steps or rate that fit a budget
    graphveil claims      what a paper prints, beside what can be proven
    """


for _command in (
    data.data,
    training.plan,
    training.train,
    training.predict,
    ledger.ledger,
    reporting.report,
    comparing.compare,
    comparing.sweep,
    tuning.tune,
    tables.bench,
    curves.curves,
    drawing.tsne,
    drawing.hard_cases,
    explaining.explain,
    accounting.account,
    accounting.calibrate,
    accounting.claims,
):
    cli.add_command(_command)
