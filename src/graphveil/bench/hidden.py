"""What a trained network holds of a record before it decides: its last hidden state.

    states = hidden_states(method, data)                    # (records, width)
    rows, y, _ = embeddings(method, arranged, "train")      # of labelled training records

*Guarantee*: none. A hidden state is a function of a record's own row, and of its neighbours' where
the method reads them: it is for whoever may see those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.targets import is_labelled

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.methods import Method
    from graphveil.runs import Arranged

    Part = tuple[Data, Tensor, str | None]  # a graph, some of its records, and the mode


def hidden_states(method: Method, data: Data, mode: str | None = None) -> Tensor:
    """What the last layer of a fitted method reads, for every record of ``data``.

    That is watched in a prediction in ``mode``, in the one that the method has by itself if None.
    A method whose last layer reads the features themselves, or whose layers read no record at a
    time, has none, and is refused.

    *Guarantee*: none, see this module.
    """
    import torch

    from graphveil.graph.checks import num_records

    read: dict[int, list[Tensor]] = {}  # by layer, in the order in which layers were last entered

    def note(layer: Any, given: tuple[Any, ...]) -> None:
        rows = given[0] if given else None
        if isinstance(rows, torch.Tensor) and rows.dim() == 2 and rows.is_floating_point():
            read[id(layer)] = [*read.pop(id(layer), []), rows.detach()]

    layers = [
        layer
        for layer in method.network_.modules()
        if layer is not method.network_ and any(True for _ in layer.parameters())
    ]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        method.infer(data, mode)
    finally:
        for hook in hooks:
            hook.remove()
    records = num_records(data)
    whole = [rows for rows in map(torch.cat, _of_one_width(read)) if len(rows) == records]
    if not whole or _is_input(whole[-1], method, data):
        raise InvalidInputError(
            f"The method must have a hidden layer. Got '{method.name}' whose last one reads "
            "features as they are instead; look at its output."
        )
    return whole[-1]


def _of_one_width(read: dict[int, list[Tensor]]) -> list[list[Tensor]]:
    """What each layer read, if it can stand in one table."""
    return [parts for parts in read.values() if len({part.shape[1] for part in parts}) == 1]


def _is_input(rows: Tensor, method: Method, data: Data) -> bool:
    """Whether a layer read what the network was given: then none came before it."""
    prepare = getattr(method, "prepare", None)
    given = data.x if prepare is None or "batch" in data else prepare(data)
    if rows.layout != given.layout or rows.shape != given.shape:
        return False
    return rows.is_sparse_csr or bool(rows.equal(given.to(rows.dtype)))


def embeddings(
    method: Method, arranged: Arranged, nodes: str = "test", of: str | None = None
) -> tuple[Tensor, Tensor, str]:
    """Rows and classes of the labelled records to ``train`` or ``test`` on, or of ``all``.

    ``of`` is ``hidden``, ``output`` (log-probabilities) or None: hidden states where there are
    some. The third value says which they are. Test records are predicted as they were measured.

    *Guarantee*: none, see this module.
    """
    import torch

    training, testing = arranged.training, arranged.testing
    train: Part = (training, training.train_mask, None)
    test: Part = (testing, testing.test_mask, arranged.mode)
    chosen: list[Part] = {"train": [train], "test": [test], "all": [train, test]}[
        _validate.choice("nodes", nodes, ("train", "test", "all"))
    ]
    if nodes == "all" and training is testing:
        chosen = [(training, torch.ones_like(training.train_mask), None)]
    rows, classes = [], []
    for graph, mask, mode in chosen:
        states, of = _states(method, graph, mode, of)
        kept = mask & is_labelled(graph.y)
        rows.append(states[kept])
        classes.append(graph.y[kept])
    return torch.cat(rows), torch.cat(classes), str(of)


def _states(method: Method, graph: Data, mode: str | None, of: str | None) -> tuple[Tensor, str]:
    if of != "output":
        try:
            return hidden_states(method, graph, mode), "hidden"
        except InvalidInputError:
            if of == "hidden":
                raise
    return method.infer(graph, mode).clamp_min(1e-12).log(), "output"
