"""The contract of every method: settings in the constructor, a plan before any data, then `fit`.

    method = DPGNN(epsilon=8.0)
    print(method.plan(Facts(num_nodes=20_000, ...)).certificate())   # nothing was touched yet
    method.fit(data)
    method.certificate_, method.predict(data)

A method is a keyword-only dataclass of settings (:mod:`graphveil.methods.settings`), and takes part
in scikit-learn's ``clone`` and ``Pipeline`` (:mod:`graphveil.methods.estimator`). What `fit` learns
ends in an underscore; no private data stays on the object. Methods are final: what they share is
here, and whatever differs is abstract here.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from graphveil import _validate, devices
from graphveil._errors import GraphveilError, InvalidInputError
from graphveil._progress import Progress, choose_progress
from graphveil.data.schema import Schema, as_schema
from graphveil.graph.targets import RECORDS, TASKS, is_labelled
from graphveil.methods.class_weights import check_class_weights, weigh_classes
from graphveil.methods.estimator import Estimator
from graphveil.methods.given_data import check_edges_read, refuse_links
from graphveil.methods.inference import Inference, Noisy
from graphveil.methods.owners import count_owners, leave_owners, protect_owners
from graphveil.methods.parts import Release
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import setting, setting_fields, settings
from graphveil.methods.task import Task, make_task
from graphveil.privacy.guarantee import Certificate, Charge

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.checkpoint import Checkpoint
    from graphveil.methods.embedding import Embedding
    from graphveil.methods.execution import Execution
    from graphveil.rng import SecretStream


@settings()
class Method(Estimator, ABC):
    """A way to train on a graph.

    A method says which settings it has, which network it trains, which parts its plan is made of,
    how it runs them, and how it predicts. Its traits say what it is: whether it is ``private``,
    which method is its ``baseline``, whether it is ``compared`` unless somebody asks for less,
    which ``units`` it protects, what a ``record`` is, what a private score of it reads
    (``scored_by``), whether it can read a graph that does not fit in memory (``reads_stores``), and
    how it charges for an owner of several records (``owners``; :mod:`graphveil.methods.owners`).
    """

    name: ClassVar[str]
    record: ClassVar[str] = "node"  # what is classified, and what a step draws
    private: ClassVar[bool] = True
    baseline: ClassVar[str | None] = None  # what it must beat, which reads no edge
    compared: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("node",)
    tasks: ClassVar[tuple[str, ...]] = TASKS
    inferences: ClassVar[tuple[Inference, ...]]  # the first is the default
    modes: ClassVar[tuple[str, ...]]
    scored_by: ClassVar[str] = ""  # nothing is proven of a private score
    reads_stores: ClassVar[bool] = False
    owners: ClassVar[str | None] = None  # as 'one term', by 'rows', or in no proven way

    seed: int = setting(
        "Draws first weights and other public choices, never noise.", 0, "[0, 1e18]"
    )
    class_weights: Any = setting(
        "Public numbers that the losses of classes, or of labels, are multiplied by; or 'noisy', "
        "which counts classes for a share of the budget, and weighs rare ones more.",
        None,
    )
    huber: float | None = setting(
        "Of a regression: the share of the range beyond which an error counts by its size and not "
        "by its square.",
        None,
        "(0, 1]",
    )

    # Set by fit.
    plan_: Plan = field(init=False)
    certificate_: Certificate = field(init=False)
    network_: Any = field(init=False)
    charges_: list[Charge] = field(init=False)
    inference_: list[str] = field(init=False)
    void_because_: tuple[str, ...] = field(init=False)
    class_names_: tuple[str, ...] | None = field(init=False)
    columns_: tuple[str, ...] | None = field(init=False)
    schema_: Schema | None = field(init=False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "inferences" in vars(cls):
            cls.modes = tuple(inference.mode for inference in cls.inferences)

    # --- what a method says ----------------------------------------------------------------------

    @abstractmethod
    def network(self, facts: Facts) -> Any:
        """The description of the network; see :mod:`graphveil.nn.descriptions`."""

    @abstractmethod
    def _plan(self, facts: Facts) -> Plan:
        """The parts, and what they promise. Touches no data."""

    @abstractmethod
    def _train(self, execution: Execution, data: Data) -> nn.Module:
        """Run the parts of the execution's plan; the trained network."""

    @abstractmethod
    def outputs(self, data: Data, mode: str) -> Tensor:
        """What the network says of every record, neighbours read in the open."""

    # --- plan ------------------------------------------------------------------------------------

    @final
    def plan(self, facts: Facts) -> Plan:
        """What training on such a graph will run and cost. Touches no data."""
        self.check_settings()
        if facts.record != self.record:
            raise InvalidInputError(
                f"The method '{self.name}' must have {RECORDS[self.record]} to train on. Got "
                f"{RECORDS[facts.record]} instead; take another method, or other data."
            )
        if facts.task not in self.tasks:
            raise InvalidInputError(
                f"The method '{self.name}' must be given one of the tasks {', '.join(self.tasks)}. "
                f"Got {facts.task!r} instead; take another method."
            )
        check_class_weights(self, facts)
        facts = count_owners(self, facts)
        plan = replace(self._plan(facts), settings=self.training_settings())
        return protect_owners(plan).plain()

    @final
    def task(self, facts: Facts) -> Task:
        """What is learnt."""
        binary = getattr(self, "loss", "softmax") == "binary"
        return make_task(facts, binary=binary, huber=self.huber)

    @final
    def unit_for(self, facts: Facts) -> str:
        """What is protected; an edge is directed or not, as is stated of the graph."""
        unit: str = getattr(self, "unit", self.units[0])
        if unit != "edge":
            return unit
        if facts.directed is None:
            raise InvalidInputError(
                "The unit 'edge' must know whether edges have a direction: one edge is one message "
                "then, and else two. Got data of which nobody says so, and measuring it would read "
                "private edges; write --directed or --undirected, or set data.directed."
            )
        return "edge-directed" if facts.directed else "edge-undirected"

    @final
    def num_units(self, facts: Facts) -> int:
        """The public number of units; delta stays below one in so many."""
        if facts.num_owners is not None:
            return facts.num_owners
        unit = self.unit_for(facts)
        units, bound = facts.count_units(unit), getattr(self, "public_edges", None)
        return units if bound is None or unit == "node" else min(units, bound)

    @final
    def build(self, facts: Facts) -> Any:
        """The network with fresh weights, which ``seed`` draws."""
        from graphveil.methods.open_training import build_seeded

        return build_seeded(self.network(facts), self.seed)

    @final
    def training_settings(self) -> dict[str, Any]:
        """The settings that must still be the same when the fitted method predicts."""
        kept = {
            name: getattr(self, name)
            for name, declared in setting_fields(type(self)).items()
            if not declared.metadata["predicts"]
        }
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()
        }

    # --- fit -------------------------------------------------------------------------------------

    @final
    def fit(
        self,
        data: Any,
        y: None = None,
        *,
        directory: str | Path | None = None,
        progress: Progress | bool | None = None,
        rng: SecretStream | None = None,
        device: str | None = None,
    ) -> Self:
        """Train on ``data`` (``x``, ``edge_index``, ``y`` and the three masks).

        It may also be a pair of tables (nodes, edges) with a column ``split``, or such a graph of
        NetworkX. Whole graphs are one ``Data`` with a ``batch``, or a list or data set of ``Data``.
        ``y`` is for pipelines of scikit-learn, and None: labels stand in the data. With a
        ``directory`` every step is noted there before it is taken, and a run that was killed goes
        on from its last checkpoint, charged for every step it ever began. ``progress`` is True for
        a bar, which notebooks have anyway, False for none, or a function of the steps. ``device``
        is where steps are computed (:mod:`graphveil.devices`): "cpu", "cuda" or "cuda:N".

        *Guarantee*: the certificate in ``certificate_``, for what it says is released.
        """
        from graphveil.methods.checkpoint import Checkpoint

        _refuse_labels(y)
        data = self.take(data, to_train=True)
        if "withheld" in data:
            raise InvalidInputError(
                "The data must hold everybody's rows. Got an audit's neighbour, in which a record "
                "is withheld, instead; take a record that shall not take part out of train_mask."
            )
        with devices.use(device):
            return self.run(
                self.plan(Facts.of(data)).on(data),
                data,
                checkpoint=None if directory is None else Checkpoint(directory),
                progress=choose_progress(progress, f"training {self.name}"),
                rng=rng,
            )

    @final
    def run(
        self,
        plan: Plan,
        data: Data,
        *,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
        rng: SecretStream | None = None,
        on_loss: Callable[[float], None] | None = None,
        on_step: Callable[[Any, int], None] | None = None,
    ) -> Self:
        """Run a plan that was made for this very data; see :class:`Execution` for the rest."""
        from graphveil.graph.checks import class_names_of, columns_of
        from graphveil.graph.contents import compare_data
        from graphveil.methods.execution import Execution

        compare_data(data)
        check_edges_read(self, data)
        self._check_plan(plan, data)
        # A paper's epsilon is a claim, which binds nothing.
        target = math.inf if plan.claim is not None else getattr(self, "epsilon", math.inf)
        execution = Execution(
            plan,
            checkpoint=checkpoint,
            rng=rng,
            progress=progress,
            on_loss=on_loss,
            on_step=on_step,
            target=target,
        )
        earlier = self._forget()
        self.plan_ = plan
        try:
            encoded = leave_owners(plan.facts, self._encode(data))
            execution.class_weights = weigh_classes(self, execution, encoded)
            network = self._train(execution, encoded).eval()
            self._check_plan(plan, data)  # what ran is what was planned, to the end
        except GraphveilError:
            if not execution.ran:  # the data was refused: an earlier fit is left alone
                self._forget()
                vars(self).update(earlier)
            raise
        reasons = (execution.rng.void_reason,) if self.private else ()
        self.restore(plan, network, execution.charges, [reason for reason in reasons if reason])
        self.put_names(class_names_of(data), columns_of(data), getattr(data, "schema", None))
        return self

    @final
    def _check_plan(self, plan: Plan, data: Data) -> None:
        """Refuse a plan that was made for other settings, or for other data."""
        settings = {**self.training_settings(), "method": self.name}
        changed = _differing(settings, {**plan.settings, "method": plan.method})
        if not set(devices.public()) <= set(plan.public):
            raise InvalidInputError(
                "A run must compute on the processor, or on the device that its plan names. Got "
                f"{devices.kind()!r} for a plan that does not name it instead; go on with --device "
                "cpu, or start anew."
            )
        if changed or not plan.facts.matches(data):
            what = (
                f"another {', '.join(changed)}"
                if changed
                else "data of other sizes, or directed otherwise,"
            )
            raise InvalidInputError(
                f"A plan must be run with the settings and on the data it was made for. Got {what} "
                "instead; plan anew."
            )

    @final
    def restore(
        self,
        plan: Plan,
        network: Any,
        charges: list[Charge],
        void_because: Iterable[str] = (),
        inference: Iterable[str] = (),
        certificate: Certificate | None = None,
    ) -> None:
        """Become the fitted method that ran ``plan``; without a certificate, price the charges."""
        self.plan_, self.network_, self.charges_ = plan, network.eval(), charges
        self.put_names()
        self.void_because_, self.inference_ = tuple(void_because), list(inference)
        if certificate is None:
            self.certify()
        else:
            self.certificate_ = certificate

    @final
    def put_names(
        self,
        classes: Iterable[str] | None = None,
        columns: Iterable[str] | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Know the public names of classes and of feature columns, and the schema of tables."""
        self.schema_ = as_schema(schema)
        self.class_names_ = None if classes is None else tuple(classes)
        self.columns_ = None if columns is None else tuple(columns)

    @final
    def certify(self) -> None:
        """Write the certificate anew, for the charges and the ways to predict there were."""
        self.certificate_ = self.plan_.certificate(
            self.charges_, void_because=self.void_because_, inference=self.inference_
        )

    @final
    def _forget(self) -> dict[str, Any]:
        """Forget an earlier fit: were this one cut short, nothing of the two would mix."""
        return {name: vars(self).pop(name) for name in list(vars(self)) if name.endswith("_")}

    # --- prediction ------------------------------------------------------------------------------

    @final
    def predict_proba(
        self, data: Any, *, mode: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        """The answers of every record: (records, columns).

        These are the probabilities of classes, or of labels; of a regression the value. ``mode`` is
        one of ``modes``, by default the first; see :mod:`graphveil.methods.inference`.
        ``noisy`` spends an ``epsilon`` of its own, which is charged before anything is released.
        """
        mode = _validate.choice("mode", self.modes[0] if mode is None else mode, self.modes)
        return self.infer(self.readable(data), mode, epsilon)

    @final
    def infer(self, data: Data, mode: str | None = None, epsilon: float | None = None) -> Tensor:
        """As :meth:`predict_proba`, of data that was checked already."""
        import torch

        mode = self.modes[0] if mode is None else mode
        if (mode == "noisy") != (epsilon is not None):
            way_out = "say how much it may spend" if mode == "noisy" else "leave it out"
            raise InvalidInputError(
                "The mode 'noisy' needs an 'epsilon', and no other mode takes one. Got mode "
                f"{mode!r} with epsilon={epsilon!r} instead; {way_out}."
            )
        inference = self.inferences[self.modes.index(mode)]
        self.network_.eval()
        with torch.no_grad(), devices.placed(self.network_):
            answers = inference.predict(self, self._encode(data), epsilon)
        if self.private and mode != self.modes[0]:
            self._say(inference)
        return answers

    @final
    def predict(
        self, data: Any, *, mode: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        """What is decided of every record, in the shape of ``y``: its most probable class, ..."""
        refuse_links(self.record, "Predictions")
        answers = self.predict_proba(data, mode=mode, epsilon=epsilon)
        return self.task(self.plan_.facts).decide(answers)

    @final
    def embed(self, data: Any, mode: str | None = None, *, of: str | None = None) -> Embedding:
        """What the model holds of every record before it decides, for other models to read.

        ``mode`` is one of ``modes`` but ``noisy``, by default the first; ``of`` is ``hidden``, the
        default where there is a hidden layer, or ``output``. See
        :mod:`graphveil.methods.embedding`.

        *Guarantee*: ``seen_by`` of the answer says who may see it, and ``costs`` what it costs.
        """
        from graphveil.methods.embedding import embed

        if mode == "noisy":
            raise InvalidInputError(
                "An embedding must read rows in the open or noisy sums that are paid for. Got mode "
                "'noisy' instead, which pays for predictions; predict in it, or take the mode "
                f"'{self.modes[0]}'."
            )
        mode = _validate.choice("mode", self.modes[0] if mode is None else mode, self.modes)
        embedding = embed(self, self.readable(data), mode, of)
        if self.private and mode != self.modes[0]:
            self._say(self.inferences[self.modes.index(mode)])
        return embedding

    @final
    def predict_frame(
        self, data: Any, *, mode: str | None = None, epsilon: float | None = None
    ) -> pd.DataFrame:
        """Predictions as a pandas.DataFrame, a row for each record.

        ``id`` as the owner of the data wrote it (``data.ids``), else a number; ``prediction``, the
        class by its name where names are public, else its number (of several labels a tuple, of a
        regression the value); ``probability_NAME`` of every class or label, or ``value``, with
        ``low`` and ``high`` where its error was released (`late-graph`); of a
        binary task ``rank`` by the probability of the class that is looked for, from 1. ``mode``
        and ``epsilon`` as in `predict_proba`.

        *Guarantee*: what the mode promises, which ``certificate_`` says.
        """
        from graphveil.methods.prediction_table import tabulate

        self._check_fitted()
        data = self.take(data)
        return tabulate(self, data, self.predict_proba(data, mode=mode, epsilon=epsilon))

    @final
    def save(self, directory: str | Path, data: Any = None) -> None:
        """Write this fitted method as a finished run, which ``graphveil.read`` gives back.

        With ``data`` the figures on its test records are written, too: read off labels, outside
        the certificate.

        *Guarantee*: that of ``certificate_``, which is written with it.
        """
        self._check_fitted()
        # The one call upwards: what a run is, is known there.
        import_module("graphveil.runs.saving").save(self, directory, data)

    @final
    def score(
        self,
        data: Any,
        y: None = None,
        *,
        mode: str | None = None,
        mask: str = "test_mask",
    ) -> float:
        """How right answers are on the labelled records of a mask, between 0 and 1.

        Of classes that is the accuracy, of a regression R2, of links the MRR. Outside the
        guarantee: it reads labels, or links.
        """
        from graphveil.graph.checks import check

        _refuse_labels(y)
        data = self.take(data)
        check(data, labels=False, masks=False)
        if self.record == "link":
            from graphveil.methods.link_task import measure_fitted

            return float(measure_fitted(self, data, mask)["test_mrr"] or 0.0)
        if "y" not in data:
            raise InvalidInputError("The data must have labels, 'y', to be scored by. Got none.")
        if mask not in data:
            raise InvalidInputError(
                f"The 'mask' parameter must name a mask of the data. Got {mask!r} instead; "
                "graphveil.split(data) draws the three usual ones."
            )
        wanted = data[mask] & is_labelled(data.y)
        if not wanted.any():
            raise InvalidInputError(
                f"The '{mask}' must hold a labelled node. Got none instead; name another mask."
            )
        answers, task = self.predict_proba(data, mode=mode), self.task(self.plan_.facts)
        if task.name == "regression":
            return float(task.measure(answers[wanted], data.y[wanted])["r2"] or 0.0)
        return float(task.credit(answers[wanted], data.y[wanted]).mean())

    @final
    def plan_prediction(self, epsilon: float, sensitivity: float = 1.0) -> Release:
        """The release that a noisy prediction will make. Touches no data."""
        self._check_fitted()
        for inference in self.inferences:
            if isinstance(inference, Noisy):
                return inference.part(self, epsilon, sensitivity)
        raise InvalidInputError(
            "The mode 'noisy' must belong to a private method that reads neighbours when it "
            f"predicts. Got the method '{self.name}' instead; use the mode '{self.modes[0]}'."
        )

    @final
    def charge(self, part: Release) -> None:
        """Charge a noisy prediction; first: whatever comes after it, a release was made."""
        self.charges_.append(Charge(paid_for=part.paid_for, event=part.event))
        sentence = self.inferences[self.modes.index("noisy")].says(self, self.plan_.unit)
        if sentence not in self.inference_:
            self.inference_.append(sentence)
        self.certify()

    @final
    def answers(self, outputs: Tensor) -> Tensor:
        """What is said of every record, from what the network says."""
        return self.task(self.plan_.facts).answers(outputs)

    @final
    def _encode(self, data: Data) -> Data:
        """The same data, with labels as losses read them."""
        if self.plan_.facts.task != "regression" or "y" not in data or data.y is None:
            return data
        data = copy.copy(data)
        data.y = self.task(self.plan_.facts).targets(data.y)
        return data

    @final
    def _say(self, inference: Inference) -> None:
        """Have the certificate say how was predicted."""
        sentence = inference.says(self, self.plan_.unit)
        if sentence not in self.certificate_.inference:
            self.inference_.append(sentence)
            self.certify()

    @final
    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            from graphveil._errors import NotFittedError  # which loads scikit-learn

            raise NotFittedError(f"This {type(self).__name__} has not been fitted; call 'fit'.")

    @final
    def readable(self, data: Any) -> Data:
        """Data that this fitted method can read; anything else is refused."""
        from graphveil.graph.checks import check
        from graphveil.graph.columns import put_in_order
        from graphveil.methods.given_data import check_targets

        self._check_fitted()
        data = self.take(data)
        check(data, labels=False, masks=False, record=self.record)
        check_edges_read(self, data)
        data = put_in_order(data, getattr(self, "columns_", None), f"this {type(self).__name__}")
        wanted = self.plan_.facts.num_features
        if data.x.shape[1] != wanted:
            raise InvalidInputError(
                f"The 'x' parameter must have {wanted} columns, as in training. Got "
                f"{data.x.shape[1]} instead."
            )
        if self.record == "link":
            check_targets(self, data)
        self.check_settings()  # prediction has settings of its own, which may have been changed
        if changed := _differing(self.training_settings(), self.plan_.settings):
            raise InvalidInputError(
                f"The settings must be those of the fit. Got another {', '.join(changed)} instead; "
                "set it back, or fit again."
            )
        return data

    @final
    def take(self, data: Any, *, to_train: bool = False) -> Data:
        """One ``Data``, also from tables, NetworkX, or a list or a data set of graphs."""
        from graphveil.graph.checks import MASKS
        from graphveil.methods.given_data import take_graph, take_graphs, take_links

        if self.record in ("link", "node"):
            return (take_links if self.record == "link" else take_graph)(self, data)
        data = take_graphs(self, data)
        if to_train and any(mask not in data for mask in MASKS):
            raise InvalidInputError(
                "The graphs must be split: their 'train_mask', 'val_mask' and 'test_mask' must be "
                "there. Got none, or not all, instead; fit split(collate(graphs)), with "
                "graphveil.split and graphveil.graph.collate.collate."
            )
        return data


def _differing(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """The names of settings that are not what they were."""
    return sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))


def _refuse_labels(y: Any) -> None:
    if y is not None:
        raise InvalidInputError(
            "The labels must stand in the data (data.y, or the column 'label'). Got a 'y' beside "
            "it instead; put it there."
        )
