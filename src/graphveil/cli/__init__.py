"""The command line: parse, call, print.

Results go to stdout, everything else to stderr. With ``--json`` stdout holds one JSON object and
nothing else. Exit codes, for every command: 0 done, 1 unexpected, 2 usage or bad input, 3 refused
by a privacy budget, an unproven guarantee or a failed verification, 4 a reproduced figure out of
tolerance, 5 less privacy seen by an audit than is promised, 130 interrupted (129 and 143 by SIGHUP
and SIGTERM). Who interrupts is told what stays charged, and how it goes on.

A command's module is imported when it is called, and heavy modules inside the commands, so that
``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import FrameType

import click

from graphveil import __version__, processes
from graphveil._errors import GraphveilError, InvalidInputError
from graphveil.cli import _output
from graphveil.cli._output import open_streams, say

EXIT_CODES = (
    "Exit codes: 0 done, 1 unexpected, 2 usage or bad input, 3 refused by a privacy budget, an "
    "unproven guarantee or a failed verification, 4 a reproduced figure out of tolerance, 5 less "
    "privacy seen by an audit than is promised, 130 interrupted."
)
_GRACE = 5.0  # seconds
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
    words = sys.argv[1:] if arguments is None else arguments
    _output.quiet = words[:1] == ["train"] and _follows()
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
        if _output.quiet:  # rank 0 says it, and must not be ended before it has
            time.sleep(_GRACE)
    except (click.Abort, KeyboardInterrupt) as error:
        ended = error.__cause__ or error  # click hides it
        say(*_explain_interruption(ended, words))
        code = 128 + (ended.number if isinstance(ended, _Terminated) else signal.SIGINT)
    except GraphveilError as error:
        say(str(error))
        code = 0 if isinstance(error, processes.EndedError) else error.exit_code
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
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    # What was ignored stays so, as by nohup.
    taken = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            if signal.getsignal(number) is end:  # and not ignored, as once a process was lost
                signal.signal(number, signal.SIG_DFL)


def _follows() -> bool:
    """Whether this process is one of several, and another one speaks for all."""
    try:
        place = processes.place()
    except InvalidInputError:
        return False
    return place is not None and place.rank > 0


def _explain_interruption(error: BaseException, arguments: Sequence[str]) -> tuple[str, str]:
    """What is left, as whoever stopped says it, and the command that goes on."""
    notes = " ".join(getattr(error, "__notes__", ()))
    if "--resume" in notes:
        # Right after the command: behind a "--" it would be no option.
        name, *again = (word for word in arguments if word not in ("--force", "--resume"))
        command = shlex.join(["graphveil", name, "--resume", *again])
        return f"interrupted. {notes} That is:", command
    return f"interrupted. {notes}" if notes else "interrupted", ""


# Module and first sentence of each command, in the order of the work.
COMMANDS = {
    "data": ("data", "The graphs known by name, and your own."),
    "methods": ("methods", "The methods, or the settings of one."),
    "choose": ("choose", "The method to take, its plan and why, by public facts alone."),
    "plan": ("plan", "What a method will run and cost, before any data is touched."),
    "train": ("train", "A model, its certificate and its metrics, in a directory."),
    "predict": ("predict", "The class of every node, or of every graph, by a trained model."),
    "recommend": ("recommend", "The best targets of every source, by a model of links."),
    "embed": ("embed", "What a trained model holds of every node or graph, for other models."),
    "export": ("export", "A trained model that reads single rows, as an ONNX file."),
    "report": ("report", "A page about runs, to hand on: what is promised, and what it costs."),
    "certificate": ("certificate", "A certificate to hand over: shown, signed, verified."),
    "card": ("card", "A run as a record for the OpenDP Deployments Registry."),
    "publish": ("publish", "A folder with a model, its certificate and its card, for others."),
    "audit": ("audit", "A promise put on trial: replays, draws, canaries and attacks."),
    "ledger": ("ledger", "What was ever spent on some people's data, and what is left."),
    "compare": ("compare", "All methods on one graph, with the honest baselines."),
    "tune": ("tune", "Settings chosen by trials that are charged: one run with one certificate."),
    "sweep": ("sweep", "One method under several values of a setting, all else equal."),
    "bench": ("bench", "Published tables and figures, run beside what was published."),
    "curves": ("curves", "The loss on test records while models learn, as a picture."),
    "tsne": ("tsne", "Nodes as trained models see them, as a picture."),
    "hard-cases": ("hard_cases", "The test nodes that private and open models get wrong."),
    "explain": ("explain", "The edges that private and open models of graphs look at."),
    "recipes": ("recipes", "The settings of published experiments, by name."),
    "account": ("account", "What a training run costs: epsilon by PLD and by RDP."),
    "calibrate": ("account", "The noise, the steps or the rate that fit a budget."),
    "claims": ("claims", "What a paper prints for a setting, beside what can be proven for it."),
    "cite": ("cite", "BibTeX of the papers behind a method, and of this library."),
}


class _Commands(click.Group):
    """Commands that are imported when they are called; help lists them without that."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"graphveil.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])


@click.command(
    cls=_Commands,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="graphveil")
def cli() -> None:
    """Differential privacy for graph neural networks, with an epsilon that holds."""
