"""Fifteen mistakes that the field made and others, each planted by a patch; who catches it.

Replays catch what is listed here; docs/guarantees/audits.md has the table.
"""

import copy
from dataclasses import replace

import pytest
import torch
from audit_cases import data_of, make

from graphveil import mechanisms, rng
from graphveil.audit.replay import replay
from graphveil.audit.resuming import replay_resume
from graphveil.grads import coins, step
from graphveil.grads.clipping import Flat, Off, PerLayer
from graphveil.graph import caps, groups
from graphveil.mechanisms import Gaussian
from graphveil.methods import class_weights, gap, hop_training, inference
from graphveil.methods.dp_gnn import DPGNN
from graphveil.privacy import accounting, guarantee


def no_clipping(patch):
    patch.setattr(Flat, "factors", Off.factors)


def noise_unscaled_by_the_clip(patch):
    patch.setattr(Flat, "scales", lambda self, blocks: dict.fromkeys(blocks, 1.0))


def noise_halved(patch):
    noisy = mechanisms._noisy

    def halved(array, *others):
        return array + (noisy(array, *others) - array) / 2

    patch.setattr(mechanisms, "_noisy", halved)


def sender_cap_ignored(patch):
    cap = caps.cap_senders
    patch.setattr(caps, "cap_senders", lambda e, n, k, **how: cap(e, n, None, **how))


def nothing(patch):
    """The setting itself is the mistake."""


def per_layer_charged_once(patch):
    patch.setattr(PerLayer, "scales", lambda self, blocks: {b: self._bound(b) for b in blocks})


def epsilon_times_rate(patch):
    def shrunk(rate, inner, delta, interval):
        inside = accounting.price(inner, delta / rate)
        return replace(inside, epsilon=rate * inside.epsilon, delta=delta)

    patch.setattr(accounting, "_amplified_price", shrunk)
    patch.setattr(guarantee, "price", accounting.price)


def batches_frozen(patch):
    first = {}
    draw = rng.SecretStream.bernoulli

    def again(self, probability, n):
        coins = draw(self, probability, n)
        return first.setdefault((probability, n), coins)

    patch.setattr(rng.SecretStream, "bernoulli", again)


def edges_between_splits(patch):
    patch.setattr(
        groups, "within", lambda edges, of: caps.cap_senders(edges, len(of), None, seed=0)
    )


def edge_charged_as_one_arc(patch):
    bound = gap.sensitivity
    patch.setattr(gap, "sensitivity", lambda unit, *others: bound("edge-directed", *others))


def forward_pass_let_out(patch):
    train = hop_training.train_attention

    def leak(method, network, hop, sending, data, execution):
        train(method, network, hop, sending, data, execution)
        heard = torch.bincount(data.edge_index[1], minlength=len(data.x)).double()
        with torch.no_grad():
            next(network.attention[hop].parameters()).add_(1e-3 * float(heard.max()))

    for module in (hop_training, gap):
        if hasattr(module, "train_attention"):
            patch.setattr(module, "train_attention", leak)


def dropout_from_a_shared_stream(patch):
    plain = coins.Dropout.forward
    patch.setattr(coins.Dropout, "forward", lambda self, x, ids=None: plain(self, x))
    patch.setattr(coins, "set_generators", lambda states: None)


def own_batch_size(patch):
    release = step.PrivateStep._release

    def shrunk(self, drawn):
        expected = self.sample_rate * len(self.examples)
        return {k: v * expected / max(len(drawn), 1) for k, v in release(self, drawn).items()}

    patch.setattr(step.PrivateStep, "_release", shrunk)


def release_without_a_part(patch):
    train = DPGNN._train

    def also(self, execution, data):
        counts = torch.bincount(data.y[data.y >= 0]).double()
        Gaussian(noise_multiplier=1.0, sensitivity=1.0).release(counts, execution.rng)
        return train(self, execution, data)

    patch.setattr(DPGNN, "_train", also)


def noise_lacking_on_the_last_weights(patch):
    noisy = mechanisms._noisy

    def weak(array, *others):
        result = noisy(array, *others)
        if array.ndim == 1:
            result[-3:] = array[-3:] + (result[-3:] - array[-3:]) / 10
        return result

    patch.setattr(mechanisms, "_noisy", weak)


def noise_lacking_where_nothing_is(patch):
    noisy = mechanisms._noisy

    def weak(array, *others):
        result = noisy(array, *others)
        result[array == 0] /= 100
        return result

    patch.setattr(mechanisms, "_noisy", weak)


def noise_mirrored(patch):
    noisy, last = mechanisms._noisy, {}

    def mirrored(array, *others):
        noise = last.pop(array.shape, None)
        if noise is not None:
            return array - noise
        result = noisy(array, *others)
        last[array.shape] = result - array
        return result

    patch.setattr(mechanisms, "_noisy", mirrored)


def noise_halved_later(patch):
    release = step.PrivateStep._release

    def halved(self, drawn):
        with pytest.MonkeyPatch.context() as inner:
            if self.taken > 6:
                noise_halved(inner)
            return release(self, drawn)

    patch.setattr(step.PrivateStep, "_release", halved)


def noise_alike_in_all_rows(patch):
    noisy = mechanisms._noisy

    def alike(array, *others):
        result = noisy(array, *others)
        return array + (result - array)[:1] if array.ndim == 2 else result

    patch.setattr(mechanisms, "_noisy", alike)


def first_term_twice(patch):
    draw = step.PrivateStep._draw

    def drawn(self):
        ids = draw(self)
        return torch.cat([ids, ids[:1]])

    patch.setattr(step.PrivateStep, "_draw", drawn)


def learning_rate_of_the_batch(patch):
    draw = step.PrivateStep._draw

    def drawn(self):
        ids, (group, *_) = draw(self), self.optimizer.param_groups
        group["lr"] *= self.sample_rate * len(self.examples) / max(len(ids), 1)
        return ids

    patch.setattr(step.PrivateStep, "_draw", drawn)


def weights_moved_besides(patch):
    draw = step.PrivateStep._draw

    def drawn(self):
        ids = draw(self)
        with torch.no_grad():
            next(self.module.parameters()).add_(1e-3 * len(ids))
        return ids

    patch.setattr(step.PrivateStep, "_draw", drawn)


def counts_doubled(patch):
    count = class_weights._count_classes
    patch.setattr(class_weights, "_count_classes", lambda *of: 2 * count(*of))


def terms_clipped_in_pairs(patch):
    def factors(self, squares):
        total = sum(squares.values()).clone()
        pairs = len(total) // 2 * 2
        total[:pairs] = (total[:pairs].view(-1, 2).sum(1) / 2).repeat_interleave(2)
        factor = (self.max_grad_norm / total.sqrt().clamp_min(1e-15)).clamp(max=1)
        return dict.fromkeys(squares, factor)

    patch.setattr(Flat, "factors", factors)


def answers_read_neighbours(patch):
    answer = gap.GAP.outputs_from

    def leak(self, data, cache):
        outputs, (sources, targets) = answer(self, data, cache), data.edge_index
        heard = data.x[sources, :1].expand(-1, outputs.shape[1]).to(outputs)
        return outputs.index_add(0, targets, heard)

    patch.setattr(gap.GAP, "outputs_from", leak)


def answers_of_half_the_bound(patch):
    weigh = inference._weigh_senders

    def halve(*of):
        weight, bound = weigh(*of)
        return weight, bound / 2

    patch.setattr(inference, "_weigh_senders", halve)


BUGS = [
    (no_clipping, "dp-gnn", {"max_grad_norm": 0.01, "steps": 2}, "longer than its bound"),
    (
        noise_unscaled_by_the_clip,
        "dp-gnn",
        {"max_grad_norm": 2.0, "steps": 2},
        "longer than its bound",
    ),
    (noise_halved, "dp-gnn", {}, "noise has another size"),
    (
        sender_cap_ignored,
        "dp-gnn",
        {"delivery": 1.0, "sender_cap": 2, "steps": 2},
        "more terms change",
    ),
    (
        nothing,
        "dp-gnn",
        {"sampler": "printed", "sender_cap": 2, "case": "crowd"},
        "more terms change",
    ),
    (
        per_layer_charged_once,
        "dp-gnn",
        {
            "clipping": "per_layer",
            "num_layers": 2,
            "sender_cap": 2,
            "max_grad_norm": 0.01,
            "steps": 2,
        },
        "longer than its bound",
    ),
    (epsilon_times_rate, "dpar", {"variant": "em0", "graph_rate": 0.5}, "less than its parts"),
    (batches_frozen, "dp-gnn", {"sample_rate": 0.4}, "coins are not fresh"),
    (
        edges_between_splits,
        "graph-split",
        {"clip_by": "document", "splits": 6, "num_layers": 2, "steps": 2},
        "more terms change",
    ),
    (edge_charged_as_one_arc, "gap", {"unit": "edge"}, "moves further"),
    (
        forward_pass_let_out,
        "gap",
        {"unit": "edge", "weighting": "attention", "open_steps": 2},
        "something else is let out",
    ),
    (
        dropout_from_a_shared_stream,
        "graph-split",
        {"dropout": 0.5, "clip_by": "document", "splits": 3, "steps": 2},
        "another public seed",
    ),
    (own_batch_size, "dp-gnn", {"sample_rate": 0.4}, "expected batch size"),
    (release_without_a_part, "dp-gnn", {"steps": 1}, "not in the plan"),
    # Mistakes that are hard to see.
    (noise_lacking_on_the_last_weights, "dp-mlp", {"steps": 8}, "noise has another size"),
    (noise_lacking_where_nothing_is, "gap", {"unit": "edge", "case": "isolated"}, "another size"),
    (noise_mirrored, "dp-mlp", {}, "negated"),
    (noise_halved_later, "dp-mlp", {"steps": 24}, "noise has another size"),
    (noise_alike_in_all_rows, "gap", {"unit": "edge"}, "successive rows"),
    (first_term_twice, "dp-gnn", {"sample_rate": 0.4}, "a term is drawn twice"),
    (learning_rate_of_the_batch, "dp-mlp", {"sample_rate": 0.4}, "than is planned: 'lr'"),
    (weights_moved_besides, "dp-mlp", {"sample_rate": 0.4}, "something else than the optimiser"),
    (counts_doubled, "dp-mlp", {"class_weights": "noisy"}, "moves further"),
    (answers_read_neighbours, "gap", {}, "answers about others differ"),
    (answers_of_half_the_bound, "late-graph", {}, "moves further"),
    (terms_clipped_in_pairs, "dp-mlp", {"sample_rate": 0.6, "max_grad_norm": 0.1}, "its company"),
]


def trial(name, settings):
    """Two steps, where a bug shows in every step; noise is measured over more of them."""
    case = settings.get("case")
    settings = {key: value for key, value in settings.items() if key != "case"}
    return replay(make(name, **settings), data_of(name, case), most=2)


_SOUND = {}


def holds_as_it_is(name, settings):
    """Whether the sound code passes the same trial; several bugs share one."""
    key = name, repr(settings)
    if key not in _SOUND:
        _SOUND[key] = trial(name, settings).holds
    return _SOUND[key]


@pytest.mark.parametrize(
    ("bug", "name", "settings", "rule"), BUGS, ids=[bug.__name__ for bug, *_ in BUGS]
)
def test_a_replay_catches_what_was_planted(bug, name, settings, rule, monkeypatch):
    if bug is not nothing:
        assert holds_as_it_is(name, settings)
    bug(monkeypatch)
    finding = trial(name, settings)
    assert not finding.holds
    assert any(rule in str(violation) for violation in finding.violations), finding.violations[:3]


def test_noise_that_is_used_again_after_a_resume_is_caught(tmp_path, monkeypatch):
    data, method = data_of("dp-gnn"), make("dp-gnn", steps=8)
    assert replay_resume(method, data, tmp_path / "sound").holds

    def fresh():
        return rng._fixed_source(7)

    source = {"now": fresh()}
    begin = step.PrivateStep.resume

    def resume(self, directory):
        source["now"] = fresh()  # a generator whose state was saved with the run
        begin(self, directory)

    monkeypatch.setattr(rng, "_os_source", lambda count: source["now"](count))
    monkeypatch.setattr(step.PrivateStep, "resume", resume)
    finding = replay_resume(copy.copy(method), data, tmp_path / "broken")
    assert any("second time" in str(violation) for violation in finding.violations)
