"""Factors keep gradients within their bound; scales are the units in which the whole has norm 1."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphveil._errors import InvalidInputError
from graphveil.grads import (
    CLIPPINGS,
    Automatic,
    Flat,
    Off,
    PerLayer,
    Quantile,
    Sampling,
    make_clipping,
)
from graphveil.grads.clipping import Adaptive

BLOCKS = ("a", "b", "c.d")
quick = settings(deadline=None, max_examples=100)
lengths = st.floats(0, 1e15)
bounds = st.floats(1e-6, 1e6)
MODES = {
    "flat": lambda draw: Flat(draw(bounds)),
    "one bound for all layers": lambda draw: PerLayer(draw(bounds)),
    "a bound for each layer": lambda draw: PerLayer({block: draw(bounds) for block in BLOCKS}),
    "automatic": lambda draw: Automatic(draw(bounds), gamma=draw(st.floats(1e-6, 1.0))),
    "quantile": lambda draw: Quantile(draw(bounds), share=draw(st.floats(0.001, 0.9))),
}


def squared(norms, dtype=torch.float64):
    return {block: torch.tensor(values, dtype=dtype) ** 2 for block, values in norms.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mode", MODES)
def test_a_clipped_gradient_has_norm_at_most_one_in_units_of_the_scales(mode, dtype):
    @quick
    @given(st.data(), st.lists(lengths, min_size=3, max_size=3))
    def law(data, norms):
        clipping = MODES[mode](data.draw)
        found = clipping.factors(
            squared({b: [n] for b, n in zip(BLOCKS, norms, strict=True)}, dtype)
        )
        scales = clipping.scales(list(BLOCKS))
        parts = [float(found[b]) * n / scales[b] for b, n in zip(BLOCKS, norms, strict=True)]
        # The rules enlarge norms by 2e-6 before they come here: more than this rounding.
        assert math.hypot(*parts) <= 1 + (1e-12 if dtype == torch.float64 else 5e-7)

    law()


@quick
@given(bounds, st.lists(st.floats(1e-10, 1e15), min_size=3, max_size=3))
def test_flat_is_the_least_shrinking_of_the_whole(bound, norms):
    found = Flat(bound).factors(squared({b: [n] for b, n in zip(BLOCKS, norms, strict=True)}))
    wanted = min(1.0, bound / math.hypot(*norms))
    assert [float(value) for value in found.values()] == pytest.approx([wanted] * 3, rel=1e-12)


@quick
@given(bounds, st.floats(1e-6, 1.0), lengths)
def test_automatic_is_the_formula(bound, gamma, length):
    found = Automatic(bound, gamma).factors(squared({"a": [length]}))
    assert float(found["a"]) == pytest.approx(bound / (length + gamma), rel=1e-12)


def test_per_layer_looks_at_every_layer_by_itself():
    clipping = PerLayer({"a": 1.0, "b": 10.0})
    found = clipping.factors(squared({"a": [0.5, 2.0, 4.0], "b": [40.0, 5.0, 20.0]}))
    assert found["a"].tolist() == pytest.approx([1.0, 0.5, 0.25])
    assert found["b"].tolist() == pytest.approx([0.25, 1.0, 0.5])


@pytest.mark.parametrize("count", [1, 2, 7])
def test_per_layer_scales_are_the_bounds_times_the_root_of_their_number(count):
    blocks = [f"layer{i}" for i in range(count)]
    own = {block: 0.5 + i for i, block in enumerate(blocks)}
    for clipping, bound in [(PerLayer(3.0), dict.fromkeys(blocks, 3.0)), (PerLayer(own), own)]:
        assert clipping.scales(blocks) == pytest.approx(
            {block: bound[block] * math.sqrt(count) for block in blocks}
        )


def test_flat_and_automatic_have_one_scale():
    assert Flat(2.0).scales(["a", "b"]) == {"a": 2.0, "b": 2.0}
    assert Automatic(2.0).scales(["a", "b"]) == {"a": 2.0, "b": 2.0}


def test_off_shrinks_nothing_and_has_no_bound():
    assert Off().factors(squared({"a": [0.0, 1e9]}))["a"].tolist() == [1.0, 1.0]
    assert Off().scales(["a"]) == {"a": math.inf}


@pytest.mark.parametrize("clipping", [Flat(1.0), PerLayer(1.0), Automatic(1.0), Quantile(1.0)])
def test_what_is_not_finite_is_multiplied_by_zero(clipping):
    norms = {"a": torch.tensor([math.nan, math.inf, 1.0]), "b": torch.tensor([1.0, 1.0, 1.0])}
    found = clipping.factors(norms)
    assert found["a"].tolist()[:2] == [0.0, 0.0]
    assert found["a"][2] > 0
    if not isinstance(clipping, PerLayer):  # the other layers of such an example, too
        assert found["b"].tolist()[:2] == [0.0, 0.0]


@pytest.mark.parametrize("clipping", [Flat(1.0), PerLayer(1.0), Quantile(1.0)])
def test_a_zero_gradient_is_left_alone(clipping):
    assert clipping.factors({"a": torch.zeros(2)})["a"].tolist() == [1.0, 1.0]


def test_a_layer_without_a_threshold_is_named():
    with pytest.raises(InvalidInputError, match=r"'c\.d'.*single number"):
        PerLayer({"a": 1.0, "b": 1.0}).scales(list(BLOCKS))
    with pytest.raises(InvalidInputError, match=r"'b'"):
        PerLayer({"a": 1.0}).factors(squared({"a": [1.0], "b": [1.0]}))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, True])
def test_a_bound_must_be_positive_and_finite(bad):
    for make in (Flat, Automatic, Quantile, lambda b: Automatic(1.0, gamma=b)):
        with pytest.raises(InvalidInputError):
            make(bad)
    for clipping in (PerLayer(bad), PerLayer({"a": bad})):
        with pytest.raises(InvalidInputError):
            clipping.scales(["a"])


# --- by name ----------------------------------------------------------------------------------


def test_clippings_are_made_by_name():
    kinds = [type(make_clipping(name, 0.5)) for name in CLIPPINGS]
    assert kinds == [Flat, PerLayer, Automatic, Quantile]
    assert [isinstance(make_clipping(name, 0.5), Adaptive) for name in CLIPPINGS] == [
        False, False, False, True
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"'clipping' .* Got 'soft'"):
        make_clipping("soft", 0.5)


@pytest.mark.parametrize("wrong", [{"sample_rate": 0.0}, {"noise_multiplier": -1.0}])
def test_a_sampling_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        Sampling(**{"sample_rate": 0.1, "noise_multiplier": 1.0, **wrong})


def test_what_a_step_is_told_needs_no_torch():
    code = """
import sys
from graphveil.grads.settings import CLIPPINGS, Sampling, Target
print(type(Sampling(sample_rate=0.1, noise_multiplier=1.0).event(10)).__name__)
assert "torch" not in sys.modules, "torch was loaded"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "SampledGaussianDpEvent"
