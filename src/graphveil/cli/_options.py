"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

Decorator = Callable[[Any], Any]


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order in which help lists them."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def complete_method(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Methods by name, for a shell that completes."""
    from graphveil.methods import METHODS

    return [name for name in (*METHODS, "auto") if name.startswith(incomplete)]


def complete_data(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of the catalog, then files and folders, for a shell that completes."""
    from graphveil.data.catalog import CATALOG

    names = [CompletionItem(name) for name in CATALOG if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
force = click.option("--force", is_flag=True, help="Replace what is there.")
data = click.option(
    "--data",
    required=True,
    shell_complete=complete_data,
    help="A name of the catalog, or a path.",
)
root = click.option("--root", help="Folder with raw data; else GRAPHVEIL_DATA or the cache.")
split = click.option(
    "--split",
    type=click.Choice(["transductive", "inductive", "given"]),
    help="Who is trained on: drawn by --seed (one graph, or two without an edge between them), or "
    "the masks that come with the data. Default: given for files that have masks, and for data "
    "sets that are defined by their split (ogbn-*, molbace, reddit, cora:full ...), else "
    "transductive.",
)


def _numbers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[float, ...] | None:
    """Numbers with commas between them; how many there must be is checked where they go."""
    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise click.UsageError(
            f"Write '--fractions' as three numbers, e.g. 0.8,0,0.2. Got {text!r}."
        ) from None


fractions = click.option(
    "--fractions",
    metavar="TRAIN,VAL,TEST",
    callback=_numbers,
    help="Shares of a split that is drawn. Default: 0.75,0.1,0.15.",
)
train_share = click.option(
    "--train-share", type=float, help="Train on this share of the training records. Default: 1."
)
thinned = click.option(
    "--thinned",
    type=click.Choice(["keep", "remove"]),
    help="What becomes of the training records that --train-share leaves out: they stay in the "
    "graph, which is the default, or are removed from it.",
)
min_class = click.option(
    "--min-class",
    type=int,
    help="Leave out classes with fewer labelled records. Read off the labels: certificates name "
    "it as not protected.",
)
classes = click.option(
    "--classes",
    metavar="N|A,B,C|public",
    help="What is public of the classes of your own files: how many there are, their names, or "
    "public: whatever names the file has. Else names are not published.",
)
directed = click.option(
    "--directed/--undirected",
    default=None,
    help="Whether edges of your own files have a direction; the unit edge asks for it. A line of "
    "a table goes both ways unless --directed.",
)
schema = click.option(
    "--schema",
    type=click.Path(dir_okay=False),
    help="What is public of every column of your own tables: see 'graphveil data schema'. Default: "
    "the schema.toml beside them, if there is one.",
)


def _words(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> list[str] | None:
    """Words with commas between them."""
    return None if text is None else [word.strip() for word in text.split(",")]


# What is stated of tables of several types.
typed = together(
    click.option(
        "--people",
        metavar="A,B",
        callback=_words,
        help="Of tables of several types, those that are people; rows of all others are public.",
    ),
    click.option("--target", metavar="TYPE", help="The type of people whose label is predicted."),
    click.option(
        "--link",
        metavar="RELATION",
        help="Learn which links there are: of tables of several types those of a relation; "
        "'edges' takes the edges of a graph for links between its nodes.",
    ),
)
# Where data comes from and how it is split; _runs.make_source reads them.
source = together(
    root, split, fractions, train_share, thinned, min_class, classes, directed, schema, typed
)

sets = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting of the method; repeat."
)
recipe = click.option(
    "--recipe", help="The settings of a published experiment; see 'graphveil recipes'."
)
config = click.option(
    "--config", type=click.Path(dir_okay=False), help="A TOML file; the command line wins."
)
delta = click.option("--delta", type=float, help="Default: below 1/nodes, a power of ten.")
device = click.option(
    "--device",
    metavar="cpu|cuda|cuda:N",
    help="Where steps and predictions are computed. Default: cpu. Noise is drawn on the processor.",
)
ledger = together(
    click.option("--ledger", help="A file or postgresql:// URL to charge: see 'graphveil ledger'."),
    click.option("--account", help="Its account; may be left out if it has but one."),
)
# Of a command that makes one run, perhaps by a file.
run = together(
    click.option("--data", shell_complete=complete_data, help="A name of the catalog, or a path."),
    click.option("--out", help="The directory of the run."),
    click.option(
        "--seed", type=int, help="Draws split and first weights, never noise. Default: 0."
    ),
    source,
    recipe,
    sets,
    config,
    ledger,
)
# Of a command that measures several.
seeds = together(
    click.option("--seeds", type=int, default=3, help="Runs of each."),
    click.option("--seed", type=int, default=0, help="The first of them."),
)
jobs = click.option(
    "--jobs",
    type=int,
    default=1,
    metavar="N",
    help="Processes on this machine that share the work, each with its share of the cores and a "
    "copy of the graph in memory.",
)
shard = click.option(
    "--shard",
    metavar="I/N",
    help="Only every N-th run, from the I-th on; needs --results. Shards may run at once, on one "
    "machine or several.",
)
results = click.option(
    "--results",
    metavar="DIR",
    help="A folder where every run is written down as it ends. What is in it is not run again: "
    "after a crash, or after shards, the same command goes on from there.",
)
metric = click.option(
    "--metric",
    help="What rows are set side by side by, such as accuracy, macro_f1, average_precision, r2. "
    "Default: what fits the task.",
)

# What only the owner of the data knows; graphveil.report.owner reads it.
owner = together(
    click.option(
        "--facts",
        type=click.Path(dir_okay=False),
        help="A TOML file with what only the owner knows; options count more.",
    ),
    click.option("--name", help="What the model is called."),
    click.option("--owner", multiple=True, help="Who answers for it, and publishes it; repeat."),
    click.option("--purpose", help="What it is for."),
    click.option("--region", help="Where its people live, or whose law applies."),
    click.option("--published", metavar="DAY", help="When it is published: 2026-11-19."),
    click.option("--releases", help="'One release' or 'Many releases'."),
    click.option("--data-source", help="'Static', or 'Dynamic' where new data comes in."),
    click.option("--authors", multiple=True, help="Who fills in the card; repeat."),
)
