"""A method that was fitted by hand, written as a run and read back.

method = LateGraph(epsilon=8.0).fit(data)
method.save("runs/ward")
method = graphveil.read("runs/ward")
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from graphveil._errors import InvalidInputError
from graphveil._files import private_directory
from graphveil.methods import Method
from graphveil.runs import record as _record
from graphveil.runs.files import locked, unusable, write_json
from graphveil.runs.record import Asked
from graphveil.runs.run import Run
from graphveil.runs.source import MEMORY, Arranged, Source
from graphveil.runs.training import finish, measure

_NOTHING = "nothing was measured: it was saved without data"


def read(directory: str | Path) -> Method:
    """The fitted method of a finished run: one that was saved, or that ``graphveil train`` made.

    *Guarantee*: that of its certificate; reading is not releasing.
    """
    return Run(directory).read()


def save(method: Method, directory: str | Path, data: Any = None) -> None:
    """Write a fitted method as a finished run, as :meth:`Method.save` says."""
    run, facts = Run(directory), method.plan_.facts
    if (state := run.state) != "new":
        was = "finished" if state == "finished" else "begun and not finished"
        raise InvalidInputError(
            f"The run in {directory} is {was}, and save does not write over a run; choose another "
            "directory, or remove that one."
        )
    run.check()
    metrics = _measure(method, data)
    source = Source(data=MEMORY, split="given", seed=0, directed=facts.directed)
    asked = Asked(
        method=method.name,
        settings=method.get_params(),
        source=source,
        split="given",
        class_names=None if method.class_names_ is None else list(method.class_names_),
        columns=None if method.columns_ is None else list(method.columns_),
        schema=None if method.schema_ is None else method.schema_.to_dict(),
    )
    try:
        private_directory(run.directory)
        with locked(run.directory):
            run.check_state()
            named = _record.write_plan(run.directory, method.plan_)
            asked = replace(asked, plan_sha256=named)
            write_json(run.directory / _record.SETTINGS, asked.to_json())
            finish(run.directory, method, metrics)
    except OSError as error:
        raise unusable(run.directory, error) from error


def _measure(method: Method, data: Any) -> dict[str, Any]:
    """The figures on the test records of ``data``; without any, that there are none."""
    if data is not None:
        from graphveil.graph.checks import check

        data = check(method.readable(data), masks=True)
        return measure(method, Arranged(training=data, testing=data, mode=None, split="given"))
    classes = method.plan_.facts.num_classes
    return {
        "test_accuracy": None,
        "class_accuracy": [None] * classes,
        "class_count": [0] * classes,
        "note": _NOTHING,
    }
