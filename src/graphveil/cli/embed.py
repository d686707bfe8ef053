"""What a run's model holds of records, as a table for other models."""

from __future__ import annotations

import click

from graphveil import devices
from graphveil.cli import _options as option
from graphveil.cli._graphs import check_graph, load_graph, read_ids
from graphveil.cli._output import Result, check_file
from graphveil.cli._runs import add_cost


@click.command()
@click.argument("run")
@option.data
@option.root
@click.option(
    "--mode",
    type=click.Choice(["cached", "visible", "noisy", "disjoint"]),
    help="As of 'graphveil predict'. Noisy embeddings are refused. Default: cached for gap, "
    "visible for the others.",
)
@click.option(
    "--of",
    type=click.Choice(["hidden", "output"]),
    help="What the last layer reads, or what the decision is made of. Default: hidden where there "
    "is a hidden layer.",
)
@click.option("--out", required=True, help="The table: .parquet, or .csv.")
@option.device
@option.force
@option.as_json
def embed(
    run: str,
    data: str,
    root: str | None,
    mode: str | None,
    of: str | None,
    out: str,
    device: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """What a trained model holds of every node or graph, for other models.

    A table with id and columns e0, e1, ... It costs nothing beyond the run, and is read off rows in
    the open: the answer, and the metadata of a Parquet file, say who may see it.

    \b
    graphveil embed runs/social --data social --out rows.parquet
    """
    from graphveil.export.tables import check_table, write_embedding

    check_table(out)
    check_file(out, force)

    from graphveil import runs

    check_graph(data, run, mode, noisy=False)
    trained = runs.Run(run)
    with devices.use(device):
        method, embedding = trained.embed(lambda: load_graph(trained, data, root), mode=mode, of=of)
    guarantee = method.certificate_.guarantee
    about = {
        "method": method.name,
        "unit": guarantee.unit,
        "epsilon_of_weights": str(guarantee.epsilon),
        "delta": guarantee.delta,
    }
    ids = read_ids(trained, data, method.record)
    columns = write_embedding(embedding, out, ids=ids, about=about)
    result = Result(f"Embeddings of {method.name}, {embedding.mode}", run=run, data=data)
    result.add("method", method.name)
    result.add("mode", embedding.mode)
    result.add("of", embedding.of, "of", _OF.__getitem__)
    result.add("rows", len(embedding.rows), f"{method.record}s", "{:,}".format)
    result.add("columns", len(columns) - 1, "columns")
    add_cost(result, method.certificate_, "of the weights")
    result.add("costs", embedding.costs, "costs")
    result.add("seen_by", embedding.seen_by, "seen by")
    result.add("private", embedding.private)
    result.add("out", out, "written to")
    result.show(as_json)


_OF = {"hidden": "what the last layer reads", "output": "what the decision is made of"}
