"""Every method trains and predicts on a device, and nothing that had to be moved stays behind."""

import contextlib
import sys
from pathlib import Path

import fake_device
import pytest
import torch
from torch import nn

import graphveil
from graphveil import devices
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.cli import cli
from graphveil.data.store import write_store
from graphveil.grads.step import make_private
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.mechanisms import Gaussian
from graphveil.methods import METHODS
from graphveil.nn.node_classifier import NodeClassifier
from graphveil.rng import secret
from graphveil.runs import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))

from methods_cases import changed, data_for, made

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor:UserWarning")

MORE = {
    "dp-gnn": [
        {"num_layers": 2, "encoder_layers": 1, "decoder_layers": 2},
        {"conv": "gat", "num_layers": 2},
        {"conv": "gin", "clipping": "per_layer"},
        {"conv": "sage", "clipping": "quantile"},
        {"delivery": 0.5, "sender_cap": 3},
        {"paper": True, "batch_size": 10, "noise_ratio": 1.0},
        {"class_weights": "noisy"},
    ],
    "late-graph": [{"num_layers": 2}, {"sample_rate": 0.5}],
    "gap": [
        {"unit": "edge"},
        {"unit": "edge", "messages": "encoding", "combine": "attention", "hops": 2},
        {"messages": "encoding", "weighting": "attention"},
        {"messages": "label", "weighting": "similarity"},
        {"paper": True},
    ],
    "dpar": [{"graph_rate": 0.5}],
    "graph-split": [
        {"dropout": 0.5, "clip_by": "document"},
        {"dropout": 0.5, "clip_by": "group"},
    ],
    "dp-mlp": [{"num_layers": 2}, {"clipping": "automatic"}],
    "graph-dpsgd": [
        {"conv": "sum"},
        {"conv": "gat", "norm": "instance", "pool": "max"},
        {"conv": "gcn", "loss": "softmax"},
    ],
    "graph-gnn": [{"conv": "gin"}, {"conv": "sage"}],
}
CASES = [(name, {}) for name in METHODS]
TABLES = ("popularity", "dp-popularity", "item-item")  # which hold counts, and no layer
VARIED = [(name, settings) for name, varied in MORE.items() for settings in varied]
FORWARD = {"aten::addmm", "aten::mm", "aten::bmm", "aten::matmul", "aten::linear"}


def answers(name, settings, data, disjoint=True):
    """Weights, what is predicted in every mode that costs nothing, and the method itself."""
    method = made(name, **settings)
    method.fit(data, rng=secret(fixed_seed=7))
    told = {key: value.clone() for key, value in method.network_.state_dict().items()}
    for mode in method.modes:
        if mode != "noisy" and (disjoint or mode != "disjoint"):
            told[mode] = method.predict_proba(data, mode=mode)
    if method.record == "link":
        told["scores"] = method.outputs(data, "visible")
    else:
        told["embedding"] = method.embed(data, of="output").rows
    return method, told


def check_same(name, settings, data, monkeypatch, **modes):
    """A method there and here: the same numbers to the last bit, and the same charge."""
    # The float32 sums of blocks are the processor's own, see grads/rules.py.
    monkeypatch.setattr("graphveil.grads.rules._BLOCK_ROWS", 0)
    method, here = answers(name, settings, data, **modes)
    with fake_device.away(monkeypatch) as looking, devices.use("cuda"):
        moved, there = answers(name, settings, data, **modes)
        assert not any(map(fake_device.is_away, there.values()))  # all of it came back
    assert there.keys() == here.keys()
    for key, value in here.items():
        assert torch.equal(there[key], value), key
    assert moved.certificate_.guarantee == method.certificate_.guarantee
    assert moved.certificate_.charges == method.certificate_.charges
    assert "computes on cuda" in str(moved.certificate_)
    assert "cuda" not in str(method.certificate_)
    return looking.counted


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_a_method_is_the_same_on_a_device(name, settings, monkeypatch):
    counted = check_same(name, settings, data_for(name), monkeypatch)
    assert any(counted[key] for key in FORWARD) or name in TABLES  # it was there


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), VARIED, ids=str)
def test_other_settings_are_the_same_on_a_device(name, settings, monkeypatch):
    check_same(name, settings, data_for(name), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "multilabel", "ordinal"])
@pytest.mark.parametrize("name", ["late-graph", "dp-gnn", "graph-dpsgd", "mlp"])
def test_tasks_are_the_same_on_a_device(name, task, monkeypatch):
    data = data_for(name)
    other = {
        "regression": {"y": data.y.float(), "num_classes": None, "value_range": (0.0, 2.0)},
        "multilabel": {"y": torch.stack([data.y == 0, data.y > 0], 1).long(), "num_classes": 2},
        "ordinal": {},
    }[task]
    check_same(name, {}, changed(data, task=task, **other), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["late-graph", "dp-mlp", "dpar", "gap", "graph-split", "mlp"])
def test_sparse_features_are_the_same_on_a_device(name, monkeypatch):
    data = data_for(name)
    x = (data.x * (data.x > 1)).to_sparse_csr()
    check_same(name, {"unit": "edge"} if name == "gap" else {}, changed(data, x=x), monkeypatch)


@pytest.mark.parametrize("name", ["dp-gnn", "late-graph", "gap", "dp-mlp"])
def test_a_store_is_the_same_on_a_device(name, tmp_path, monkeypatch):
    write_store(data_for(name), tmp_path / "store")
    data = graphveil.load(tmp_path / "store")
    check_same(name, {}, data, monkeypatch, disjoint=False)


def test_counts_of_graphs_are_the_same_on_a_device(monkeypatch):
    data = data_for("graph-dpsgd")
    settings = {"steps": 4, "epsilon": 8.0}

    def weights():
        method = METHODS["graph-dpsgd"](**settings).fit(data, rng=secret(fixed_seed=7))
        return method.predict_proba(data)

    here = weights()
    with fake_device.away(monkeypatch), devices.use("cuda"):
        assert torch.equal(weights(), here)


# --- steps of one's own ---------------------------------------------------------------------------


def own_step(place, **how):
    """A private step of a module of one's own that was put somewhere by its owner."""
    torch.manual_seed(0)
    layers = how.pop("layers", lambda: [nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)])
    module = nn.Sequential(*layers()).to(place)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    return make_private(
        module,
        torch.optim.Adam(module.parameters(), lr=0.1),
        (x, torch.arange(40) % 3),
        sample_rate=0.5,
        noise_multiplier=1.0,
        rng=secret(fixed_seed=3),
        **how,
    )


class Scaled(nn.Module):
    """A layer for which there is no rule."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize("clipping", ["flat", "quantile", "per_layer"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_moves_its_batch_to_its_module(clipping, scaled, monkeypatch):
    layers = {"layers": lambda: [nn.Linear(4, 6), Scaled(), nn.Tanh(), nn.Linear(6, 3)]}

    def weights(place):
        step = own_step(place, clipping=clipping, **(layers if scaled else {}))
        for _ in range(3):
            step()
        return torch.cat([p.detach().cpu().flatten() for p in step.module.parameters()])

    here = weights("cpu")
    with fake_device.away(monkeypatch) as looking:
        assert torch.equal(weights("cuda"), here)
    assert any(looking.counted[key] for key in FORWARD)


def test_a_checkpoint_goes_from_one_place_to_another(tmp_path, monkeypatch):
    with fake_device.away(monkeypatch):
        step = own_step("cuda")
        step.rng = secret()
        step()
        step.save(tmp_path)
        step()
    resumed = own_step("cpu")
    resumed.rng = secret()
    resumed.resume(tmp_path)
    resumed()
    assert resumed.taken == 3


# --- that these tests can fail --------------------------------------------------------------------


def stay(value, to):
    return value


MISTAKES = {
    "a step's batch stays": ("graphveil.devices.Mover.__call__", lambda self, value: value),
    "a network's rows stay": ("graphveil.devices.move", stay),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_was_not_moved_makes_a_test_fail(mistake, monkeypatch):
    monkeypatch.setattr(*MISTAKES[mistake])
    data = data_for("dp-gnn")
    with (
        fake_device.away(monkeypatch),
        devices.use("cuda"),
        pytest.raises(RuntimeError, match="same device"),
    ):
        answers("dp-gnn", {}, data)


def test_an_answer_that_stays_there_makes_a_test_fail(monkeypatch):
    forward = NodeClassifier.on_graph.__wrapped__

    def without_return(self, x, messages, ids=None):
        home = devices.home_of(self)
        return forward(self, devices.move(x, home), devices.move(messages, home), ids)

    monkeypatch.setattr(NodeClassifier, "on_graph", without_return)
    data = data_for("dp-gnn")
    with fake_device.away(monkeypatch), devices.use("cuda"):
        _, there = answers("dp-gnn", {}, data)
        assert any(map(fake_device.is_away, there.values()))


def test_a_method_that_stays_here_makes_a_test_fail(monkeypatch):
    monkeypatch.setattr(nn.Module, "to", lambda self, *_: self)
    with pytest.raises(AssertionError):
        test_a_method_is_the_same_on_a_device("dp-mlp", {}, monkeypatch)


def test_noise_is_drawn_here_and_sums_are_of_float64(monkeypatch):
    seen, release = [], Gaussian.release

    def note(self, value, rng, **how):
        seen.append((fake_device.is_away(value), value.dtype))
        return release(self, value, rng, **how)

    monkeypatch.setattr(Gaussian, "release", note)
    with fake_device.away(monkeypatch), devices.use("cuda"):
        for name in ("dp-gnn", "late-graph", "gap"):
            answers(name, {}, data_for(name))
    assert len(seen) > 10
    assert set(seen) == {(False, torch.float64)}


# --- what is moved --------------------------------------------------------------------------------


def test_a_tensor_that_comes_again_is_moved_once_and_a_changed_one_again(monkeypatch):
    with fake_device.away(monkeypatch):
        mover, x = devices.Mover("cuda"), torch.zeros(3)
        first = mover((x, [x]))
        assert first[0] is first[1][0] is mover((x,))[0]
        x += 1
        (second,) = mover((x,))
        assert fake_device.is_away(second)
        assert torch.equal(second.cpu(), torch.ones(3))
        del x, first
        assert not len(mover._kept)


# --- which device ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "mps", "cuda:x", "meta", "", 0])
def test_a_device_of_another_name_is_refused(name):
    with pytest.raises(InvalidInputError, match="cpu, cuda or cuda:N"), devices.use(name):
        pass


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InvalidInputError, match=r"not available here.*--device cpu"):
        made("dp-mlp").fit(data_for("dp-mlp"), device="cuda")
    with fake_device.away(monkeypatch, count=2):
        with devices.use("cuda:1") as name:
            assert name == devices.current() == "cuda:1"
        with pytest.raises(InvalidInputError, match="this machine has 2"), devices.use("cuda:2"):
            pass
    assert devices.current() == "cpu"


def test_a_rank_takes_the_device_of_its_place(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with fake_device.away(monkeypatch, count=2), devices.use("cuda") as name:
        assert name == "cuda:1"
    with (
        fake_device.away(monkeypatch, count=1),
        pytest.raises(InvalidInputError, match="start fewer"),
        devices.use("cuda"),
    ):
        pass
    monkeypatch.setenv("LOCAL_RANK", "first")
    with (
        fake_device.away(monkeypatch),
        pytest.raises(InvalidInputError, match="LOCAL_RANK"),
        devices.use("cuda"),
    ):
        pass


def precision():
    """What torch rounds products by; and whether all of it is exact."""
    flags = devices._flags()
    values = [getattr(where, what) for where, what, _ in flags]
    return values, values == [value for _, _, value in flags]


def test_products_are_exact_on_a_device_and_as_they_were_after_it(monkeypatch):
    before, all_exact = precision()
    assert not all_exact  # torch has some of them on
    with fake_device.away(monkeypatch), devices.use("cuda"):
        assert precision()[1]
        with devices.use("cuda"):
            pass
        assert precision()[1]  # whoever asked first is not done
    assert precision()[0] == before


def test_a_step_of_ones_own_is_exact_on_a_device_and_its_certificate_says_so(monkeypatch):
    def losses(module, batch):
        assert precision()[1]
        return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")

    with fake_device.away(monkeypatch):
        module = nn.Linear(3, 2).to("cuda")
        step = make_private(
            module, torch.optim.SGD(module.parameters(), lr=0.1),
            (torch.randn(40, 3), torch.arange(40) % 2),
            sample_rate=0.9, noise_multiplier=1.0, max_grad_norm=1.0, losses=losses,
        )  # fmt: skip
        assert not precision()[1]
        step()
    assert "computes on cuda" in str(step.certificate(unit="node", delta=1e-3))


def test_a_run_begun_on_the_processor_does_not_go_on_elsewhere(tmp_path, monkeypatch):
    data, method = data_for("dp-mlp"), made("dp-mlp")
    plan = method.plan(graphveil.methods.Facts.of(data)).on(data)
    with (
        fake_device.away(monkeypatch),
        devices.use("cuda"),
        pytest.raises(InvalidInputError, match="go on with --device cpu"),
    ):
        method.run(plan, data)


# --- what is refused there ------------------------------------------------------------------------


def mixes(module, batch):
    """Losses that know the mean of the batch's outputs."""
    x, y = batch
    outputs = module(x)
    return nn.functional.cross_entropy(outputs - outputs.mean(0).detach(), y, reduction="none")


def reads_others(module, batch):
    """Losses that know rows of a table that no root of theirs reads."""
    around, y = batch
    losses = nn.functional.cross_entropy(module(around), y, reduction="none")
    return losses * (1 + around.table.square().mean())


def terms_of(data):
    nodes = data.train_mask.nonzero().flatten()
    return RootedTerms.capped(data.x, data.y, data.edge_index, nodes, 1, max_sent=2)


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("losses", [mixes, reads_others])
def test_a_loss_that_knows_its_company_is_refused_there_too(losses, away, monkeypatch):
    data = data_for("dp-gnn")
    here = fake_device.away(monkeypatch) if away else contextlib.nullcontext()
    with here:
        module, examples = nn.Linear(5, 3), (data.x, data.y)
        if losses is reads_others:
            module, examples = NodeClassifier(5, 4, 3, num_layers=1), terms_of(data)
        module = module.to("cuda" if away else "cpu")
        step = make_private(
            module,
            torch.optim.SGD(module.parameters(), lr=0.1),
            examples,
            losses=losses,
            sample_rate=0.9,
            noise_multiplier=1.0,
        )
        with pytest.raises(UnprovenError, match="other examples are replaced"):
            step()


def test_the_command_line_names_a_device(tmp_path, monkeypatch, capsys):
    out, config = tmp_path / "run", tmp_path / "run.toml"
    words = ["train", "dp-mlp", "--data", "social", "--epsilon", "8", "--set", "steps=2"]
    words += ["--set", "features='raw'"]
    place = ["--out", str(out)]
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInputError, match="use --device cpu"):
            cli.main([*words, *place, "--device", "cuda"], standalone_mode=False)
        assert not out.exists()
    config.write_text('device = "cuda"\n')
    with fake_device.away(monkeypatch) as looking:
        cli.main([*words, *place, "--config", str(config)], standalone_mode=False)
        trained = looking.counted.total()
        record = Run(out).record()
        assert record.environment()["device"] == "cuda:0 (a device that is not there)"
        assert "computes on cuda" in str(record.certificate)
        table = tmp_path / "classes.csv"
        predict = ["predict", str(out), "--data", "social", "--out", str(table)]
        cli.main([*predict, "--device", "cuda"], standalone_mode=False)
        assert looking.counted.total() > trained
    there = table.read_text()
    cli.main([*predict, "--force"], standalone_mode=False)
    assert table.read_text() == there
    assert "computes on cuda" in (out / "certificate.txt").read_text()
    rows = tmp_path / "rows.csv"
    embed = ["embed", str(out), "--data", "social", "--out", str(rows), "--device", "cuda"]
    with fake_device.away(monkeypatch):
        cli.main(embed, standalone_mode=False)
    capsys.readouterr()
    assert rows.exists()
