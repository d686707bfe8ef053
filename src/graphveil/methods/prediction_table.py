"""Predictions as a table: ids and names as the owner of the data wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphveil.methods.given_data import refuse_links
from graphveil.methods.moments import interval_of

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.methods.base import Method


def tabulate(method: Method, data: Data, answers: Tensor) -> pd.DataFrame:
    """A row for each record of ``data``; see :meth:`Method.predict_frame`."""
    import pandas as pd

    refuse_links(method.record, "A table of predictions")
    task = method.task(method.plan_.facts)
    decided = task.decide(answers).numpy()
    columns: dict[str, Any] = {"id": _ids(data), "prediction": decided}
    of_values = task.name == "regression"
    if task.name == "multilabel":
        chosen = [tuple(method.classes_[row].tolist()) for row in decided > 0]
        columns["prediction"] = pd.Series(chosen, dtype=object)
    elif not of_values:
        columns["prediction"] = method.classes_[decided]
    for number, name in enumerate(task.columns(method.class_names_)):
        columns[name if of_values else f"probability_{name}"] = answers[:, number].numpy()
    if (ends := interval_of(method, answers)) is not None:
        columns |= {"low": ends[0].numpy(), "high": ends[1].numpy()}
    table = pd.DataFrame(columns)
    if task.name == "binary":
        chances = table.iloc[:, -1]
        ranks = chances.rank(method="min", ascending=False, na_option="bottom")
        table["rank"] = ranks.astype("int64")
    return table


def _ids(data: Data) -> Any:
    """Ids as their owner wrote them, or numbers: those before a part was taken, or from 0."""
    from graphveil.graph.checks import ids_of, num_records, record_of

    ids = ids_of(data)
    if ids is not None:
        return ids
    old = f"{record_of(data)}_id"
    return data[old].numpy() if old in data else range(num_records(data))
