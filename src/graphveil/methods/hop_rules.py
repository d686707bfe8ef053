r"""What GAP does where nobody says otherwise: shares of the budget, private steps.

Every choice is by public facts alone: the unit, what is sent, epsilon, how many nodes and classes.

**Beliefs** (``messages="belief"``, the default of the unit ``node``). A linear classifier of all
columns says what a node is by its own row, trained as :mod:`graphveil.methods.own_row` has it; sums
come second; a small head reads both last. The head starts as the classifier and a little of the
sums, and has few numbers to learn: a tenth of the budget is enough for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.methods import own_row
from graphveil.methods.own_row import OwnRowSettings
from graphveil.methods.parts import Steps
from graphveil.methods.plan import Facts
from graphveil.methods.settings import (
    Activation,
    FeatureSettings,
    Optimizer,
    StepSettings,
    setting,
    setting_fields,
    settings,
)

PAID_FOR = {
    "mean": own_row.PAID_FOR_MEAN,
    "encoder": "training of the encoder",
    "attention": "training of the attention",
    "aggregation": "noisy sums over the neighbours (the cache)",
    "classifier": "training of the classifier",
}
_SHARES = {"encoder": 1.0, "attention": 1.0, "aggregation": 4.0, "classifier": 3.0}
_SHARES_OF_BELIEFS = {"encoder": 4.5, "aggregation": 4.5, "classifier": 1.0}
# Sums say little where there is little to spend, and own rows need what there is.
_SHARES_OF_FEW = {"encoder": 8.0, "aggregation": 1.2, "classifier": 0.8}
_FEW = 500  # training nodes of a class on average, times epsilon


def usual_shares(method: Any, facts: Facts, names: list[str]) -> dict[str, float]:
    """How the budget is split among parts: shares of a squared Gaussian mu, up to a factor."""
    if method.messages_in_use == "belief":
        few = method.epsilon * facts.num_train / facts.num_classes < _FEW
        shares = _SHARES_OF_FEW if few else _SHARES_OF_BELIEFS
        return {name: shares[name] for name in names}
    usual = {name: _SHARES[name] for name in names}
    if method.unit == "node":
        # The more there is to spend, the more of it pays where the noise is largest.
        usual["aggregation"] = 3.0 * method.epsilon**2 / 20
    return usual


@settings()
class FirstClassifier(OwnRowSettings):
    """The first classifier of beliefs: the recipe of own rows, or what a method has instead."""

    seed: int = setting("What a projection is drawn by.", 0)

    @classmethod
    def of(cls, method: Any) -> Self:
        """That of a method."""
        names = setting_fields(cls).keys() & setting_fields(type(method)).keys()
        given = {name: getattr(method, name) for name in names}
        return cls(**{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """How the private steps of a part are taken, unless a user's settings say otherwise.

    Without a ``sample_rate`` steps draw as many terms as those on own rows do. Without a
    ``learning_rate`` steps on rows that are about ``length`` long have the size that the ``noise``
    in one output allows, and at most the ``longest``.
    """

    steps: int = 150
    sample_rate: float | None = 0.5
    max_grad_norm: Any = 0.5
    optimizer: str = "adam"
    momentum: float = 0.9
    learning_rate: float | None = 0.02
    averaged: float = 0.5
    length: float = 4.0
    noise: float = 0.8
    longest: float = math.inf

    @classmethod
    def of(cls, method: Any, part: str) -> Self:
        """Those of a method's part: by the settings, else by a rule."""
        rule: dict[str, Any] = {}
        if method.messages_in_use == "belief":
            rule = _HEAD if part == "classifier" else _as_first(method.own_rows)
        names = setting_fields(RuledSteps).keys() & {field.name for field in fields(cls)}
        values = {name: getattr(method, name) for name in names}
        given = {name: value for name, value in values.items() if value is not None}
        return cls(**{**rule, **given})

    def rate(self, facts: Facts) -> float:
        """The probability with which a step draws each training node."""
        return own_row.choose_rate(self, facts)

    def size(self, steps: Steps, drawn: float) -> float:
        """How long ``steps`` are that draw so many terms on average."""
        if self.learning_rate is not None:
            return self.learning_rate
        return own_row.step_size(steps, drawn, self.length, noise=self.noise, longest=self.longest)


def _as_first(first: FirstClassifier) -> dict[str, Any]:
    """The steps of the first classifier: those of all who train on own rows."""
    return {
        "steps": first.steps,
        "sample_rate": first.sample_rate,
        "max_grad_norm": first.max_grad_norm,
        "optimizer": own_row.choose_optimizer(first),
        "momentum": first.momentum,
        "learning_rate": first.learning_rate,
        "averaged": first.averaged,
        "length": own_row.row_length(first),
    }


# The head starts where it is nearly right: less noise, shorter steps.
_HEAD: dict[str, Any] = {
    "steps": 100,
    "sample_rate": None,
    "max_grad_norm": 1.0,
    "optimizer": "sgd",
    "learning_rate": None,
    "length": 1.5,
    "noise": 0.4,
    "longest": 0.5,
}


@settings()
class RuledSteps(StepSettings):
    """Private steps, by a rule where nothing is said; see :class:`Stepping`."""

    steps: int | None = setting("Private steps of each part.", None, "[1, 1e9]")  # type: ignore[assignment]
    sample_rate: float | None = setting(  # type: ignore[assignment]
        "The probability with which a step draws each loss term.", None, "(0, 1]"
    )
    max_grad_norm: Any = setting("The bound on the gradient of one loss term.", None)
    optimizer: Optimizer | None = setting(  # type: ignore[assignment]
        "What steps with the noisy gradients.", None
    )
    momentum: float | None = setting(  # type: ignore[assignment]
        "Of 'sgd': what is kept of the last step.", None, "[0, 1)"
    )
    learning_rate: float | None = setting(  # type: ignore[assignment]
        "The length of steps.", None, "(0, inf)"
    )
    averaged: float | None = setting(  # type: ignore[assignment]
        "The share of the last steps whose weights are averaged; it costs nothing.", None, "[0, 1]"
    )


@settings()
class HopSettings(FeatureSettings):
    """Features, encoders and heads around sums of hops, and their training in the open."""

    similarity: Literal["sigmoid", "half", "positive"] = setting(
        "The map of a cosine to a weight.", "sigmoid"
    )
    combine: Literal["concat", "attention"] = setting(
        "How the head combines the hops of encodings.", "concat"
    )
    encoder_layers: int = setting("Layers of the encoder.", 1, "[1, 10]")
    halved: bool = setting(
        "Every layer of the encoder is half as wide as what it reads, and so is the attention's; "
        "else all are 'hidden_channels' wide.",
        False,
    )
    activation: Activation | Literal["auto"] = setting(  # type: ignore[assignment]
        "What follows hidden layers; 'auto' follows the unit.", "auto"
    )
    open_steps: int = setting("Steps of the encoder in the open.", 300, "[1, 1e9]")
    head_steps: int = setting("Steps of the head in the open.", 200, "[1, 1e9]")
    open_batch: int = setting(
        "Training nodes that a step of the encoder reads in the open.", 1024, "[1, 1e12]"
    )
    open_learning_rate: float = setting("The length of steps in the open.", 0.01, "(0, inf)")
    dropout: float = setting("The share of values dropped in the open.", 0.4, "[0, 1)")
    weight_decay: float = setting("Shrinks weights at every step in the open.", 5e-4, "[0, inf)")


# --- what does not go together --------------------------------------------------------------------


def check_beliefs(method: Any) -> None:
    """Refuse beliefs where somebody else's sum may not be read, and what goes with them."""
    if method.messages_in_use == "belief":
        if method.unit != "node":
            raise UnprovenError(
                "With messages 'belief' a prediction reads its node's own list, which is what "
                f"edge units protect. Got unit={method.unit!r} instead; send 'evidence'."
            )
        if method.weighting != "none":
            raise UnprovenError(
                "With messages 'belief' others read a node's sum, which must not depend on its "
                f"row. Got weighting={method.weighting!r} instead; send 'label'."
            )
    elif method.centred is not None:
        raise InvalidInputError(
            "The 'centred' parameter must be left out unless messages are 'belief'. Got "
            f"{method.centred} with messages={method.messages_in_use!r} instead."
        )


def check_paper(method: Any) -> None:
    """Refuse what no paper did."""
    if method.weighting == "similarity" and method.similarity != "sigmoid":
        raise UnprovenError(
            "The paper weighs by a sigmoid of the cosine. Got similarity="
            f"{method.similarity!r} with paper=True; leave one of the two out."
        )
    if method.messages_in_use != "encoding":
        raise UnprovenError(
            "The papers send encodings. Got messages="
            f"{method.messages!r} with paper=True; leave one of the two out."
        )
    shares = ("encoder_share", "attention_share", "aggregation_share")
    if given := [name for name in shares if getattr(method, name) is not None]:
        raise InvalidInputError(
            "The papers have one noise multiplier for all parts, or state the attention's: "
            f"nothing is shared. Got '{given[0]}' with paper=True; leave one of the two out."
        )
