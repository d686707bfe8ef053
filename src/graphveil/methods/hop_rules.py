r"""What GAP does where nobody says otherwise: shares of the budget, private steps, weights.

Every choice is by public facts alone: the unit, what is sent, epsilon.

**Beliefs** (``messages="belief"``, the default of the unit ``node``). A linear classifier of all
columns says what a node is by its own row; sums come second; a small head reads both last. The
classifier needs no projection of wide features. The head has few numbers to learn: a tenth of the
budget is enough for it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from graphveil.methods.settings import (
    Activation,
    FeatureSettings,
    Optimizer,
    StepSettings,
    setting,
    settings,
)

PAID_FOR = {
    "encoder": "training of the encoder",
    "attention": "training of the attention",
    "aggregation": "noisy sums over the neighbours (the cache)",
    "classifier": "training of the classifier",
}
TRAINED_WEIGHT = 0.6  # of messages to training nodes, with beliefs
_SHARES = {"encoder": 1.0, "attention": 1.0, "aggregation": 4.0, "classifier": 3.0}
_SHARES_OF_BELIEFS = {"encoder": 4.5, "aggregation": 4.5, "classifier": 1.0}


def usual_shares(names: list[str], *, messages: str, unit: str, epsilon: float) -> dict[str, float]:
    """How the budget is split: shares of a squared Gaussian mu, up to a factor."""
    if messages == "belief":
        return {name: _SHARES_OF_BELIEFS[name] for name in names}
    usual = {name: _SHARES[name] for name in names}
    if unit == "node":
        # The more there is to spend, the more of it pays where the noise is largest.
        usual["aggregation"] = 3.0 * epsilon**2 / 20
    return usual


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """How private steps are taken. What a user sets takes the place of what the rule says."""

    steps: int = 150
    sample_rate: float = 0.5
    max_grad_norm: Any = 0.5
    optimizer: str = "adam"
    momentum: float = 0.9
    learning_rate: float = 0.02
    averaged: float = 0.5

    def given(self, method: Any) -> Stepping:
        """These, with what the settings of ``method`` say otherwise."""
        values = {field.name: getattr(method, field.name) for field in fields(self)}
        return replace(self, **{name: value for name, value in values.items() if value is not None})


def stepping(part: str, *, messages: str, epsilon: float) -> Stepping:
    """The rule for the private steps of a part.

    All nodes take part in every step where rows stand by themselves: a full batch has the most
    signal for its price. Noise that is large asks for shorter steps.
    """
    if messages != "belief":
        return Stepping()
    if part == "encoder":
        rate = 2.0 if epsilon >= 4 else 1.0
        return Stepping(
            steps=40, sample_rate=1.0, max_grad_norm=4.0, optimizer="sgd", learning_rate=rate
        )
    return Stepping(
        steps=30, sample_rate=1.0, max_grad_norm=1.0, optimizer="sgd", learning_rate=2.0
    )


@settings()
class RuledSteps(StepSettings):
    """Private steps, by a rule where nothing is said; see :func:`stepping`."""

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
