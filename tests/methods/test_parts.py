"""Parts: what plans are made of and what runs of them; a method of one's own, made of parts."""

import dataclasses
import inspect
import json
import math
from typing import final

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from methods_cases import changed, data_for, graph, made, recorded, weights
from test_charged import VARIANTS

from graphveil import bench, runs
from graphveil._errors import GraphveilError, InvalidInputError, UnprovenError
from graphveil._files import write_file
from graphveil.graph.private_rows import PrivateRows
from graphveil.mechanisms import Gaussian
from graphveil.methods import METHODS, Facts, Method, Plan, budget, parts
from graphveil.methods.budget import plan_steps
from graphveil.methods.checkpoint import INDEX, Checkpoint
from graphveil.methods.execution import Execution
from graphveil.methods.inference import OWN_ROW, Visible
from graphveil.methods.parts import Release, Search, Steps, register
from graphveil.methods.settings import Budget, StepSettings, setting, settings
from graphveil.methods.terms import no_messages, node_losses, node_terms
from graphveil.nn.descriptions import NodeNetwork
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.events import composed, repeated
from graphveil.report import evidence, page
from graphveil.rng import secret
from graphveil.runs import Arranged, Run, Source

DATA = graph()
FACTS = {name: Facts.of(data_for(name)) for name in METHODS}
PRIVATE = [name for name, kind in METHODS.items() if kind.private]


class Stop(BaseException):
    """Not an Exception: what a kill looks like from inside."""


# --- methods are final, and what they share is in one place ---------------------------------------


def defined(cls):
    """The functions and properties that a class defines itself, those that may be left out aside.

    What a dataclass and an abstract class generate is nobody's doing.
    """
    return {
        name
        for name, value in vars(cls).items()
        if inspect.isroutine(value) or isinstance(value, property)
        if not (name.startswith("__") and name.endswith("__"))
        if not name.startswith("_abc_")
    }


def concrete(cls):
    """Those of them that are not abstract."""
    return {
        name for name in defined(cls) if not getattr(vars(cls)[name], "__isabstractmethod__", False)
    }


def overridden(cls):
    """What a class defines anew although a base class of ours has it, and not as abstract."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("graphveil.methods")]
    assert Method in bases
    return sorted(
        f"{base.__name__}.{name}" for base in bases for name in defined(cls) & concrete(base)
    )


@pytest.mark.parametrize("name", METHODS)
def test_no_method_overrides_what_it_inherits(name):
    kind = METHODS[name]
    assert overridden(kind) == []
    # And nothing that is abstract is left, nor has a base class between.
    assert not inspect.isabstract(kind)
    assert concrete(kind) >= {"network", "_plan", "_train", "outputs"}


def test_an_override_would_be_noticed():
    class Other(METHODS["dp-mlp"]):
        def plan(self, facts):
            return super().plan(facts)

        @property
        def prepare(self):
            return None

    assert overridden(Other) == ["DPMLP.prepare", "Method.plan"]


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_final_and_so_is_all_that_they_share(name):
    assert METHODS[name].__final__
    shared = vars(Method)
    for what in concrete(Method):
        assert getattr(shared[what], "__final__", False), what
    assert not [
        heir for heir in METHODS[name].__subclasses__() if heir.__module__.startswith("graphveil")
    ]


# --- plans as JSON --------------------------------------------------------------------------------

SETTINGS = [
    *((key.split(",")[0], more) for key, more in VARIANTS.items()),
    ("dp-gnn", {"unit": "edge", "num_layers": 2, "sender_cap": 2}),
    ("dp-gnn", {"paper": True}),
    ("dp-gnn", {"paper": True, "sampler": "senders"}),
    ("dp-gnn", {"sampler": "printed"}),
    ("dp-gnn", {"conv": "gin"}),
    ("dp-gnn", {"conv": "gat", "heads": 2}),
    ("dp-gnn", {"conv": "gat", "attention": "dot"}),
    ("dp-gnn", {"conv": "sage", "encoder_layers": 1}),
    ("dp-gnn", {"clipping": "per_layer"}),
    ("dp-gnn", {"clipping": "per_layer", "max_grad_norm": {"convs.0.linear": 0.3}}),
    ("dp-gnn", {"clipping": "quantile"}),
    ("dp-gnn", {"clipping": "automatic"}),
    ("late-graph", {"reading": "inside"}),
    ("dp-mlp", {}),
    ("dp-mlp", {"num_layers": 3, "features": "row"}),
    ("dp-mlp", {"project_above": 3, "projection": 2}),
    ("gap", {}),
    ("gap", {"unit": "edge"}),
    ("gap", {"unit": "edge-directed"}),
    ("gap", {"messages": "evidence"}),
    ("gap", {"messages": "encoding", "hops": 2}),
    ("gap", {"paper": True}),
    ("gap", {"paper": True, "unit": "edge"}),
    ("gap", {"paper": True, "weighting": "similarity"}),
    ("gap", {"paper": True, "weighting": "attention"}),
    ("gap", {"weighting": "attention", "hops": 2}),
    ("gap", {"weighting": "similarity", "similarity": "half"}),
    ("gap", {"capping": "hard", "sender_cap": 3}),
    ("gap", {"unit": "edge", "public_edges": 1000}),
    ("gap", {"unit": "edge", "messages": "encoding", "combine": "attention"}),
    ("gap", {"aggregation_share": 0.5}),
    ("dpar", {}),
    ("dpar", {"variant": "gm"}),
    ("dpar", {"variant": "em0", "rows": 20}),
    ("dpar", {"variant": "em1", "structure_share": 0.3}),
    ("dpar", {"num_layers": 2, "variant": "em0"}),
    ("dpar", {"graph_rate": 0.5}),
    ("dpar", {"graph_rate": 0.5, "rows": 10, "variant": "em0"}),
    ("dpar", {"paper": True}),
    ("dpar", {"paper": True, "variant": "em1"}),
    ("dpar", {"optimizer": "adam"}),
    ("dpar", {"paper": True, "train_on": "nodes", "batch_size": 3, "epochs": 2}),
    ("dpar", {"graph_rate": 0.5, "rows": 10, "variant": "gm", "train_on": "nodes"}),
    ("graph-split", {}),
    ("graph-split", {"clip_by": "document"}),
    ("graph-split", {"unit": "edge"}),
    ("graph-split", {"claimed_noise": True}),
    ("graph-split", {"paper": True, "steps": 150}),
    ("graph-split", {"optimizer": "sgd", "decay": 0.5}),
    ("graph-split", {"fresh_groups": 2}),
    ("graph-split", {"splits": 1}),
    ("graph-dpsgd", {}),
    ("graph-dpsgd", {"class_weights": "noisy"}),
    ("graph-dpsgd", {"class_weights": [1, 2, 3]}),
    ("graph-dpsgd", {"class_weights": (1.0, 2.0, 3.0), "hidden_channels": (4, 3)}),
    ("graph-dpsgd", {"conv": "gcn", "norm": "instance", "num_layers": 3}),
    ("graph-dpsgd", {"num_layers": 0, "hidden_channels": 8}),
    ("graph-dpsgd", {"conv": "gat", "heads": 2, "pool": "max"}),
    ("mlp", {}),
    ("gnn", {}),
    ("gnn", {"splits": 3}),
    ("open-gap", {}),
    ("open-gap", {"weighting": "similarity", "halved": True, "encoder_layers": 2}),
    ("graph-gnn", {}),
    ("graph-gnn", {"cycles": 2, "batch_size": 8}),
    ("dp-link", {}),
    ("dp-link", {"unit": "edge", "popularity": False}),
    ("open-link", {}),
    ("popularity", {}),
    ("dp-popularity", {}),
    ("item-item", {}),
    ("open-dpar", {}),
    ("open-dpar", {"rows": 10, "train_on": "nodes", "graph_rate": 0.5, "epochs": 2}),
]


@pytest.fixture
def free(monkeypatch):
    """Noise that nobody has to look for, and which no short decimal gives."""
    monkeypatch.setattr(budget, "calibrate", lambda *_, **__: 3 + math.pi / 7)


def through_json(plan):
    return Plan.from_json(json.loads(json.dumps(plan.to_json())))


def test_no_method_is_left_out_of_the_plans_below():
    assert {name for name, _ in SETTINGS} == METHODS.keys()


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(("name", "more"), SETTINGS, ids=str)
def test_a_plan_survives_json(name, more):
    data = data_for(name)
    plan = made(name, **more).plan(FACTS[name]).on(data)
    again = through_json(plan)
    assert again == plan
    assert again.charges == plan.charges
    assert again.parts == plan.parts
    assert [type(part) for part in again.parts] == [type(part) for part in plan.parts]
    assert repr(again.parts) == repr(plan.parts)  # by which a release is known again
    assert through_json(again).to_json() == plan.to_json()


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dp-gnn", {"paper": True}),
        ("gap", {"weighting": "attention"}),
        ("dpar", {"paper": True, "variant": "em1"}),
        ("graph-split", {"decay": 0.5}),
        ("graph-dpsgd", {"class_weights": "noisy"}),
    ],
    ids=str,
)
def test_json_that_says_something_else_is_another_plan(name, more):
    """So that the test above is not blind: no number of a part is left out."""
    plan = made(name, **more).plan(FACTS[name])
    plain, tried = json.dumps(plan.to_json()), set()

    def is_another(*path):
        other = json.loads(plain)
        *way, last = path
        inner = other
        for key in way:
            inner = inner[key]
        value = inner[last]
        if isinstance(value, bool) or not isinstance(value, float | int | str):
            return
        inner[last] = f"{value} or so" if isinstance(value, str) else value + 1
        assert Plan.from_json(other) != plan, path
        tried.add(last)

    for place, part in enumerate(plan.to_json()["parts"]):
        for key in part.keys() - {"kind", "mechanism"}:
            is_another("parts", place, key)
        for key in part.get("mechanism", {}).keys() - {"type", "how"}:
            is_another("parts", place, "mechanism", key)
    for key in plan.to_json().keys() - {"parts"}:
        is_another(key)
    assert tried >= {"noise_multiplier", "count", "rate", "removed", "altered", "delta", "unit"}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dp-mlp", {"steps": 4, "sample_rate": 0.5, "max_grad_norm": 0.25, "seed": 1}),
        ("dp-gnn", {"relation": "remove", "public_degree": 20, "epsilon": 4.0}),
        ("gap", {"hops": 2, "aggregation_share": 0.5}),
        ("dpar", {"variant": "em0", "rows": 20, "row_bound": 0.125, "column_cap": 2}),
        ("graph-split", {"splits": 5, "decay": 0.5}),
        ("graph-dpsgd", {"class_weights": [1.0, 2.0, 3.0]}),
    ],
    ids=str,
)
def test_numbers_of_numpy_are_numbers(name, more, tmp_path):
    """As a search of scikit-learn gives them: all of a plan is what its file will say."""

    def as_numpy(value):
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return [np.float64(each) for each in value]
        return np.int64(value) if isinstance(value, int) else np.float64(value)

    facts, data = FACTS[name], data_for(name)
    given = {key: as_numpy(value) for key, value in more.items()}
    plan = made(name, **given).plan(facts)
    assert plan == made(name, **more).plan(facts)
    assert repr(plan) == repr(made(name, **more).plan(facts)) == repr(through_json(plan))
    with pytest.raises(Stop):
        made(name, **given).fit(data, directory=tmp_path, progress=stop_before(2))
    method = made(name, **more).fit(data, directory=tmp_path)
    assert method.certificate_.charges == method.plan_.charges
    made(name, **given).fit(data).predict(data)


@pytest.mark.usefixtures("free")
def test_no_two_parts_of_a_plan_have_one_name():
    """One of them would not be paid for."""
    plan = made("gap").plan(FACTS["gap"])
    with pytest.raises(InvalidInputError, match="name of its own"):
        dataclasses.replace(plan, parts=(*plan.parts, plan.parts[0]))


@pytest.mark.usefixtures("free")
def test_a_search_survives_json_too():
    plan = made("dp-mlp").plan(FACTS["dp-mlp"])
    event = repeated(composed(plan.part("weights").event, dpa.GaussianDpEvent(2.5)), 3)
    search = dataclasses.replace(plan, parts=(Search(paid_for="the best of three", event=event),))
    assert through_json(search) == search
    assert through_json(search).charges == search.charges
    assert search.charges[0].event == event


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    "damage",
    [{"kind": "eval"}, {"mechanism": {"type": "Path", "noise_multiplier": 1.0}}],
    ids=str,
)
def test_only_known_kinds_and_mechanisms_are_ever_made(damage):
    plain = made("gap").plan(FACTS["gap"]).to_json()
    sums = next(part for part in plain["parts"] if part["name"] == "hop1")
    sums |= damage
    with pytest.raises((KeyError, GraphveilError)):
        Plan.from_json(plain)


# --- whatever was released is known to the index --------------------------------------------------

BEGUN = [
    *((name, {}) for name in PRIVATE),
    ("gap", {"unit": "edge"}),
    ("gap", {"messages": "encoding", "weighting": "attention"}),
    ("gap", {"unit": "edge", "weighting": "attention"}),
    ("dpar", {"variant": "gm"}),
    ("dpar", {"variant": "em0"}),
    ("dpar", {"graph_rate": 0.5}),
    ("dpar", {"variant": "em1", "graph_rate": 0.5}),
    ("graph-split", {"clip_by": "document"}),
    ("graph-dpsgd", {"class_weights": "noisy"}),
]


def stop_at_the_first_release(patch, directory):
    """What the index says at the moment when noise is first drawn; the process ends right then."""
    said = []

    def release(self, *_, **__):
        said.append((Checkpoint(directory).begun, list(Checkpoint(directory).releases)))
        raise Stop

    for mechanism in (Gaussian, PrivateRows):
        patch.setattr(mechanism, "release", release)
    return said


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(("name", "more"), BEGUN, ids=str)
def test_a_run_has_begun_before_its_first_release(name, more, tmp_path, monkeypatch):
    data, method = data_for(name), made(name, **more)
    place = tmp_path / "checkpoint"
    assert not Checkpoint(place).begun
    # Stopped before anything was released: nothing was.
    with monkeypatch.context() as patch:
        patch.setattr(Method, "build", lambda *_: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            method.fit(data, directory=place)
    if not Checkpoint(place).begun:
        assert Checkpoint(place).releases == {}
    else:  # a choice that no network waits for
        assert "variant" in more or more.get("class_weights") == "noisy"
        place = tmp_path / "another"
    with monkeypatch.context() as patch:
        said = stop_at_the_first_release(patch, place)
        with pytest.raises(Stop):
            method.fit(data, directory=place)
    first = method.plan_.parts[0]
    assert said == [(True, [first.name])]
    checkpoint = Checkpoint(place)
    assert checkpoint.begun
    assert checkpoint.releases == {first.name: json.loads(json.dumps(parts.to_json(first)))}
    assert checkpoint.steps_begun() == (1 if isinstance(first, Steps) else 0)
    # Whatever else happens to the files, it stays known, or nobody knows.
    (place / INDEX).unlink()
    if any(place.iterdir()):
        assert checkpoint.begun
        with pytest.raises(InvalidInputError, match="index is gone"):
            method.fit(data, directory=place)


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 2, "releases": {}}']
)
def test_an_index_that_cannot_be_read_is_a_release_that_may_have_been(content, tmp_path):
    (tmp_path / INDEX).write_bytes(content)
    assert Checkpoint(tmp_path).begun
    with pytest.raises(InvalidInputError, match="cannot be read") as refusal:
        made("dp-mlp").fit(DATA, directory=tmp_path)
    assert "\n" not in str(refusal.value)
    assert (tmp_path / INDEX).read_bytes() == content


@pytest.mark.usefixtures("free")
def test_an_index_that_was_never_whole_is_of_a_run_that_released_nothing(tmp_path):
    (tmp_path / f".{INDEX}.partial").write_bytes(b"{")
    assert not Checkpoint(tmp_path).begun
    made("dp-mlp").fit(DATA, directory=tmp_path)
    assert Checkpoint(tmp_path).begun


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("write", ["steps", "checkpoint.pt", INDEX])
def test_a_run_killed_before_its_first_step_was_noted_goes_on(write, tmp_path, monkeypatch):
    """Journal, checkpoint, index: one is written after another, and a kill in between is free."""
    writers = {
        "steps": "grads.journal",
        "checkpoint.pt": "grads.checkpoint",
        INDEX: "methods.checkpoint",
    }
    module = f"graphveil.{writers[write]}.write_file"

    def stop(path, content, **how):
        if path.name == write and b'"releases": {}' not in content:
            raise Stop
        write_file(path, content, **how)

    with monkeypatch.context() as patch:
        patch.setattr(module, stop)
        with pytest.raises(Stop):
            made("dp-mlp", centred=False).fit(DATA, directory=tmp_path)
    assert not Checkpoint(tmp_path).begun
    seen = recorded(monkeypatch)
    method = made("dp-mlp", centred=False).fit(DATA, directory=tmp_path)
    assert len(seen.releases) == method.steps
    assert method.certificate_ == method.plan_.certificate()


@pytest.mark.usefixtures("free")
def test_steps_that_the_index_does_not_know_are_not_forgotten(tmp_path):
    """An index of before they began was put back: somebody took steps all the same."""
    empty = tmp_path / "empty"
    Checkpoint(empty).open()
    place = tmp_path / "run"
    made("dp-mlp").fit(DATA, directory=place)
    (place / INDEX).write_bytes((empty / INDEX).read_bytes())
    journal = (place / "weights" / "steps").read_bytes()
    with pytest.raises(InvalidInputError, match="index knows none"):
        made("dp-mlp").fit(DATA, directory=place)
    assert (place / "weights" / "steps").read_bytes() == journal != b""


# --- a method of one's own ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class DegreeHistogram:
    """How many nodes list so many others, ``bound`` at most, with noise on every number.

    A node that is withheld leaves the number of its list for that of the empty one: sqrt(2).
    """

    noise_multiplier: float
    bound: int

    def event(self):
        return dpa.GaussianDpEvent(self.noise_multiplier)

    def release(self, edge_index, num_nodes, rng):
        degrees = torch.bincount(edge_index[0], minlength=num_nodes).clamp_max(self.bound)
        counts = torch.bincount(degrees, minlength=self.bound + 1).double()
        gaussian = Gaussian(noise_multiplier=self.noise_multiplier, sensitivity=math.sqrt(2))
        return gaussian.release(counts, rng)


@final
@settings(steps=4, sample_rate=1.0)
class Degrees(Method, StepSettings, Budget):
    """Own rows beside a noisy histogram of degrees, which every row is scaled by."""

    name = "degrees"
    inferences = (Visible(OWN_ROW),)

    learning_rate: float = setting("The length of steps.", 0.1, "(0, inf)")
    degree_noise: float = setting("The noise of the histogram.", 20.0, "(0, inf)")
    largest: int = setting("The largest degree that is told apart.", 5, "[1, inf)")

    def network(self, facts):
        return NodeNetwork(
            in_channels=facts.num_features,
            hidden_channels=4,
            out_channels=self.task(facts).outputs,
            num_layers=0,
        )

    def _plan(self, facts):
        mechanism = DegreeHistogram(noise_multiplier=self.degree_noise, bound=self.largest)
        histogram = Release(name="degrees", paid_for="degrees, counted", mechanism=mechanism)
        return plan_steps(
            self,
            facts,
            influence=(1, 0),
            units=self.num_units(facts),
            before=lambda delta: [histogram],
        )

    def _train(self, execution, data):
        plan = execution.plan
        released = execution.release(
            plan.part("degrees"),
            lambda mechanism, rng: {"counts": mechanism.release(data.edge_index, len(data.x), rng)},
        )
        network, losses = self.build(plan.facts), node_losses(self.task(plan.facts))
        x = data.x / released["counts"].abs().max().clamp_min(1.0).float()
        terms = node_terms(x, data, no_messages(len(x)), 0)
        execution.train(plan.part("weights"), network, terms, losses)
        return network

    def outputs(self, data, mode):
        return self.network_.on_graph(data.x, no_messages(len(data.x)))


@pytest.fixture
def own(monkeypatch):
    """The method in the table of contents, and every histogram that it releases."""
    monkeypatch.setattr(parts, "_MECHANISMS", dict(parts._MECHANISMS))
    register(DegreeHistogram)
    monkeypatch.setitem(METHODS, Degrees.name, Degrees)
    drawn, release = [], DegreeHistogram.release

    def note(self, *given):
        drawn.append(release(self, *given))
        return drawn[-1]

    monkeypatch.setattr(DegreeHistogram, "release", note)
    return drawn


def stop_before(number, error=Stop):
    """A progress that ends before the step of that number."""

    def progress(steps):
        for step in steps:
            if step == number:
                raise error
            yield step

    return progress


def test_a_method_of_ones_own_is_charged_for_both_its_parts(own, monkeypatch):
    assert overridden(Degrees) == []
    seen = recorded(monkeypatch)
    method = made("degrees").fit(DATA)
    assert len(own) == 1
    (histogram, counts, rng), *steps = seen.releases
    assert rng.void_reason is None
    assert (histogram.noise_multiplier, histogram.sensitivity) == (20.0, math.sqrt(2))
    assert counts.sum() == len(DATA.x)
    assert len(steps) == 4
    plan, certificate = method.plan_, method.certificate_
    assert [charge.paid_for for charge in certificate.charges] == [
        "degrees, counted",
        "training of the weights",
    ]
    assert certificate.charges == tuple(method.charges_) == plan.charges
    (noise,) = {mechanism.noise_multiplier for mechanism, *_ in steps}
    assert noise == plan.part("weights").noise_multiplier
    ran = [dpa.GaussianDpEvent(20.0), plan.part("weights").event]
    assert [charge.event for charge in certificate.charges] == ran
    assert certificate.guarantee.epsilon == pytest.approx(
        epsilon_of(composed(*ran), plan.delta), rel=1e-9
    )
    # The histogram costs something: there is more noise on the steps for it, and no more is spent.
    assert 7.9 < certificate.guarantee.epsilon <= 8
    assert (
        noise > made("degrees", degree_noise=1e6).plan(plan.facts).part("weights").noise_multiplier
    )
    assert through_json(plan) == plan
    assert method.predict(DATA).shape == DATA.y.shape


def test_a_mechanism_that_nobody_registered_cannot_be_read(own, monkeypatch):
    plan = made("degrees").plan(Facts.of(DATA))
    monkeypatch.delitem(parts._MECHANISMS, "DegreeHistogram")
    with pytest.raises(InvalidInputError, match=r"DegreeHistogram.*register"):
        through_json(plan)
    with pytest.raises(InvalidInputError, match=r"DegreeHistogram.*register"):
        made("degrees").plan(Facts.of(DATA))  # noticed before anything is spent


def test_a_release_of_ones_own_is_checkpointed_with_its_part(own, tmp_path):
    method = made("degrees").fit(DATA, directory=tmp_path)
    assert Checkpoint(tmp_path).begun
    index = json.loads((tmp_path / INDEX).read_text())
    assert list(index["releases"]) == ["degrees", "weights"]
    assert index["releases"]["degrees"] == {
        "kind": "release",
        "name": "degrees",
        "paid_for": "degrees, counted",
        "mechanism": {"type": "DegreeHistogram", "noise_multiplier": 20.0, "bound": 5},
        "times": 1,
    }
    assert tuple(map(parts.from_json, index["releases"].values())) == method.plan_.parts
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        INDEX,
        "degrees.safetensors",
        *(f"weights/{name}" for name in ("steps", "checkpoint.pt", "finished.safetensors")),
    }
    again = made("degrees").fit(DATA, directory=tmp_path)
    assert len(own) == 1
    assert torch.equal(weights(again), weights(method))
    assert again.certificate_ == method.certificate_


@pytest.mark.parametrize("killed", ["at the release", "before the file", "after it", 0, 2])
def test_a_release_of_ones_own_is_never_drawn_again(own, killed, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Stop

    def stop_at_the_file(path, content, **how):
        if path.name == "degrees.safetensors":
            raise Stop
        write_file(path, content, **how)

    progress = stop_before(killed) if isinstance(killed, int) else None
    with monkeypatch.context() as patch:
        if killed == "at the release":
            patch.setattr(DegreeHistogram, "release", stop)
        elif killed == "before the file":
            patch.setattr("graphveil.methods.checkpoint.write_file", stop_at_the_file)
        elif killed == "after it":
            patch.setattr(Execution, "_make_step", stop)
        with pytest.raises(Stop):
            made("degrees").fit(DATA, directory=tmp_path, progress=progress)
    checkpoint, file = Checkpoint(tmp_path), tmp_path / "degrees.safetensors"
    assert checkpoint.begun
    assert list(checkpoint.releases) == (["degrees", "weights"] if progress else ["degrees"])
    kept = file.read_bytes() if file.exists() else None
    assert (kept is None) == (killed in ("at the release", "before the file"))
    before = len(own)
    assert before == (0 if killed == "at the release" else 1)
    seen = recorded(monkeypatch)
    method = made("degrees").fit(DATA, directory=tmp_path)
    # What nobody has seen is drawn anew; what is on disk is read back.
    assert len(own) - before == (1 if kept is None else 0)
    assert len(seen.releases) == len(own) - before + method.steps - (killed if progress else 0)
    if kept is not None:
        assert file.read_bytes() == kept
    assert method.certificate_ == method.plan_.certificate()
    assert len(method.charges_) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"degree_noise": 21.0},
        {"largest": 6},
        {"epsilon": 4.0},
        {"steps": 5},
        {"learning_rate": 0.2},
    ],
    ids=str,
)
@pytest.mark.parametrize("after", [0, 2])
def test_a_release_of_ones_own_is_bound_to_its_noise_and_its_settings(own, after, other, tmp_path):
    with pytest.raises(Stop):
        made("degrees").fit(DATA, directory=tmp_path, progress=stop_before(after))
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UnprovenError, match="other noise") as refusal:
        made("degrees", **other).fit(DATA, directory=tmp_path)
    assert "\n" not in str(refusal.value)
    with pytest.raises(GraphveilError):
        made("degrees").fit(DATA, directory=tmp_path, rng=secret(fixed_seed=1))
    assert len(own) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    method = made("degrees").fit(DATA, directory=tmp_path)
    assert len(own) == 1
    assert method.certificate_ == method.plan_.certificate()


def test_a_release_of_ones_own_that_is_gone_is_not_drawn_again_for_nothing(own, tmp_path):
    with pytest.raises(Stop):
        made("degrees").fit(DATA, directory=tmp_path, progress=stop_before(1))
    (tmp_path / "degrees.safetensors").unlink()
    with pytest.raises(InvalidInputError, match="is gone"):
        made("degrees").fit(DATA, directory=tmp_path)
    assert len(own) == 1


def test_a_method_of_ones_own_has_runs(own, tmp_path):
    """Whoever writes, reads and resumes runs knows parts, and no method."""
    source = Source(data="memory", split="given")
    arranged = Arranged(training=DATA, testing=DATA, mode=None, split="given")
    run, method = Run(tmp_path / "run"), made("degrees")
    with pytest.raises(Stop):
        run.train(method, source, arranged=arranged, progress=stop_before(2))
    assert run.begun
    method = made("degrees")
    run.train(method, source, arranged=arranged, resume=True)
    assert len(own) == 1
    again = run.read()
    assert type(again) is Degrees
    assert again.plan_ == method.plan_
    assert again.certificate_ == method.certificate_
    assert again.charges_ == method.charges_
    assert torch.equal(again.predict(DATA), method.predict(DATA))


def test_what_a_plan_does_not_pay_for_does_not_run(own, monkeypatch):
    """A part of another plan, and one of its own twice: neither would stand on the certificate."""
    method = made("degrees")
    plan = method.plan(Facts.of(DATA))
    draw = {"counts": torch.zeros(1)}
    for part in (
        dataclasses.replace(plan.part("degrees"), name="more"),
        dataclasses.replace(plan.part("degrees"), times=2),
        Release(
            name="degrees", paid_for="", mechanism=Gaussian(noise_multiplier=1.0, sensitivity=1.0)
        ),
    ):
        with pytest.raises(UnprovenError, match="which nothing would pay for"):
            Execution(plan).release(part, lambda *_: pytest.fail("released"))
    louder = dataclasses.replace(plan.part("weights"), noise_multiplier=0.1)
    with pytest.raises(UnprovenError, match="which nothing would pay for"):
        Execution(plan).train(louder, method.build(plan.facts), None, None)
    execution = Execution(plan)
    execution.release(plan.part("degrees"), lambda *_: draw)
    with pytest.raises(UnprovenError, match="which nothing would pay for"):
        execution.release(plan.part("degrees"), lambda *_: pytest.fail("released twice"))
    assert [charge.paid_for for charge in execution.charges] == ["degrees, counted"]


# --- an earlier fit -------------------------------------------------------------------------------


def test_a_fit_that_is_refused_leaves_an_earlier_one_alone_and_one_cut_short_leaves_none():
    method = made("dp-gnn", relation="remove", public_degree=20).fit(DATA)
    chances, certificate, plan = method.predict_proba(DATA), method.certificate_, method.plan_
    star = torch.stack([torch.zeros(30, dtype=torch.long), torch.arange(1, 31)])
    with pytest.raises(InvalidInputError, match="public_degree"):
        method.fit(changed(DATA, edge_index=star))
    assert torch.equal(method.predict_proba(DATA), chances)
    assert (method.certificate_, method.plan_) == (certificate, plan)
    for error in (Stop, UnprovenError):
        method.fit(DATA)
        with pytest.raises(error):
            method.fit(DATA, progress=stop_before(2, error))
        with pytest.raises(InvalidInputError, match="has not been fitted"):
            method.predict(DATA)


def test_a_method_of_ones_own_is_a_run_is_reported_and_compared(own, tmp_path):
    """Without another line anywhere: run, read back, predicted with, on a page and in a table."""
    source = runs.Source(data="memory", split="given")
    arranged = source.arrange(DATA)
    run = runs.Run(tmp_path / "run")
    run.train(Degrees(epsilon=4.0), source, arranged=arranged)
    assert len(own) == 1
    record = run.record()
    assert [charge.paid_for for charge in record.charges] == [
        "degrees, counted",
        "training of the weights",
    ]
    method, chances = run.predict(DATA)
    assert method.certificate_ == record.certificate
    assert chances.shape == (len(DATA.x), DATA.num_classes)
    html = page.render([evidence.read(str(run.directory))])
    assert "degrees, counted" in html
    (row,) = bench.compare(DATA, source, [("degrees", {})], epsilons=[4.0], seeds=1)
    assert (row.method, row.private, row.refused) == ("degrees", True, None)
    assert row.epsilon <= 4.0
