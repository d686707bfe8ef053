"""A run's model for other programs."""

from __future__ import annotations

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result, check_file
from graphveil.cli._runs import add_cost


@click.command()
@click.argument("run")
@click.option("--out", required=True, help="The file: .onnx.")
@option.force
@option.as_json
def export(run: str, out: str, force: bool, as_json: bool) -> None:
    """A trained model that reads single rows, as an ONNX file.

    dp-mlp and mlp; the heads of late-graph and dpar, without what they read off the graph; the
    classifier of gap, which takes a node's cached sums besides its row. Raw feature rows go in.

    \b
    graphveil export runs/social --out model.onnx
    """
    from graphveil.export.models import check_model, to_onnx

    check_model(out)
    check_file(out, force)

    from graphveil import runs

    trained = runs.Run(run)
    method, asked = trained.read(), trained.record().asked
    about = to_onnx(method, out, class_names=asked.class_names, columns=asked.columns)
    result = Result(f"{method.name} as ONNX", run=run)
    result.add("method", method.name)
    result.add("inputs", about["inputs"], "input")
    result.add("output", about["output"], "output")
    result.add("reads", about["reads"], "reads")
    add_cost(result, method.certificate_, "of the weights")
    result.add("opset", about["opset"])
    result.add("class_names", asked.class_names)
    result.add("columns", asked.columns)
    result.add("out", out, "written to")
    result.show(as_json)
