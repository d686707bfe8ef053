"""Settings of methods: declared once, with what each means and which values it takes.

    @settings(steps=40)
    class Example(Method, StepSettings, Budget):
        width: int = setting("Columns of the hidden layer.", 64, "[1, inf)")
        conv: Literal["gcn", "gat"] = setting("The convolution.", "gcn")

A declaration is a dataclass field. From its type and its interval come the check in the
constructor, the line in ``help(Example)`` and the line in ``graphveil train example --help``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from graphveil import _validate
from graphveil._errors import InvalidInputError

T = TypeVar("T", bound=type)


def setting(
    doc: str, default: Any = MISSING, within: str | None = None, *, predicts: bool = False
) -> Any:
    """Declare a setting: one sentence, its default, and the interval ``within`` which it lies.

    Without a default it is required. With ``predicts`` it matters to predictions alone, and may be
    changed after `fit`.
    """
    return dataclasses.field(
        default=default, metadata={"doc": doc, "within": within, "predicts": predicts}
    )


@dataclass_transform(
    kw_only_default=True, eq_default=False, field_specifiers=(setting, dataclasses.field)
)
def settings(**defaults: Any) -> Callable[[T], T]:
    """Make a class of declared settings, with other ``defaults`` for some that it inherits."""

    def declare(cls: T) -> T:
        own = dict(inspect.get_annotations(cls))
        for name, default in defaults.items():
            base = next(b for b in cls.__mro__[1:] if name in inspect.get_annotations(b))
            own[name] = get_type_hints(base)[name]
            metadata = setting_fields(base)[name].metadata
            setattr(cls, name, dataclasses.field(default=default, metadata=metadata))
        cls.__annotations__ = own
        made: T = dataclass(kw_only=True, eq=False, repr=False)(cls)  # type: ignore[assignment]
        made.__doc__ = f"{(made.__doc__ or '').rstrip()}\n\n{_document(made)}"
        return made

    return declare


class Settings:
    """An object that is its settings: scikit-learn's ``get_params``, ``set_params`` and ``clone``.

    Wrong values are refused by the constructor, and once more before they are used.
    """

    def __post_init__(self) -> None:
        self.check_settings()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every setting by its name."""
        return {name: getattr(self, name) for name in setting_fields(type(self))}

    def set_params(self, **values: Any) -> Self:
        """Change some settings; those that do not exist are refused."""
        known = setting_fields(type(self))
        for name in values:
            if name not in known:
                raise InvalidInputError(
                    f"{type(self).__name__} has no setting {name!r}; its settings are "
                    f"{', '.join(known)}."
                )
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def check_settings(self) -> None:
        """Refuse a value that its declaration does not allow."""
        hints = setting_types(type(self))
        for name, field in setting_fields(type(self)).items():
            check_value(name, getattr(self, name), hints[name], field.metadata.get("within"))

    def __repr__(self) -> str:
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, field in setting_fields(type(self)).items()
            if getattr(self, name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


def setting_fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The declared settings of a class, by name."""
    return {field.name: field for field in fields(cls) if field.init}


_HINTS: dict[type, dict[str, Any]] = {}


def setting_types(cls: type) -> dict[str, Any]:
    """The types of the settings of a class, by name."""
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


_PLAIN = {bool: "true or false", str: "a word"}


def check_value(name: str, value: Any, hint: Any, within: str | None = None) -> None:
    """Refuse a value that is not of a setting's type, or outside its interval."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in options:
        return
    kind = next(option for option in options if option is not NoneType)
    if get_origin(kind) is Literal:
        literals = [option for option in options if get_origin(option) is Literal]
        _validate.choice(name, value, tuple(w for words in literals for w in get_args(words)))
    elif kind in _PLAIN:
        if not isinstance(value, kind):
            raise InvalidInputError(
                f"The '{name}' parameter must be {_PLAIN[kind]}. Got {_validate.shown(value)} "
                "instead."
            )
    elif kind is int:
        if isinstance(value, float):
            raise InvalidInputError(
                f"The '{name}' parameter must be a whole number. Got {value!r} instead; write it "
                "without a point."
            )
        _validate.integer(name, value, within or "(-inf, inf)")
    elif kind is float:
        _validate.number(name, value, within or "(-inf, inf)")


def describe_type(hint: Any) -> str:
    """A setting's type as a person writes it: ``gcn | gat``, ``int | None``."""
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(describe_type(option) for option in get_args(hint))
    return {NoneType: "None", Any: "any"}.get(hint) or str(getattr(hint, "__name__", hint))


def describe_settings(cls: type) -> dict[str, tuple[str, str]]:
    """Of each setting what it means, and which values it takes: its type, interval and default."""
    rules = {}
    for name, field in setting_fields(cls).items():
        default = "required" if field.default is MISSING else f"default {field.default!r}"
        interval = f" in {field.metadata['within']}" if field.metadata.get("within") else ""
        rule = f"{describe_type(setting_types(cls)[name])}{interval}, {default}"
        rules[name] = field.metadata.get("doc", ""), rule
    return rules


def _document(cls: type) -> str:
    """One entry for each setting, for ``help``."""
    entries = [
        f"    {name}: {rule}\n        {doc}" for name, (doc, rule) in describe_settings(cls).items()
    ]
    return "\n".join(["Settings:", *entries])


# --- settings that several methods share ----------------------------------------------------------

Optimizer = Literal["adam", "sgd"]
ClippingKind = Literal["flat", "per_layer", "automatic", "quantile"]
Normalisation = Literal["inverse-degree", "symmetric", "none"]
Activation = Literal["tanh", "relu", "elu", "selu", "gelu", "leaky_relu", "softplus"]


@settings()
class Budget:
    """What may be spent."""

    epsilon: float = setting("What may be spent.", within="(0, inf)")
    delta: float | None = setting(
        "But for a failure of at most this probability epsilon bounds a release; by default the "
        "largest power of ten below 1 / units.",
        None,
        "(0, 1)",
    )


@settings()
class StepSettings:
    """Training by sampled, clipped, noisy steps."""

    steps: int = setting("Private steps.", 150, "[1, 1e9]")
    sample_rate: float = setting(
        "The probability with which a step draws each loss term.", 0.5, "(0, 1]"
    )
    max_grad_norm: Any = setting(
        "The bound on the gradient of one loss term; with clipping 'per_layer' perhaps one for "
        "each layer, by name.",
        0.5,
    )
    clipping: ClippingKind = setting("How gradients are bounded.", "flat")
    optimizer: Optimizer = setting("What steps with the noisy gradients.", "adam")
    momentum: float = setting("Of 'sgd': what is kept of the last step.", 0.9, "[0, 1)")
    learning_rate: float = setting("The length of steps.", 0.02, "(0, inf)")
    averaged: float = setting(
        "The share of the last steps whose weights are averaged; it costs nothing.", 0.2, "[0, 1]"
    )


@settings()
class FeatureSettings:
    """Features as a network reads them: every row by itself, which is free."""

    features: Literal["power", "row", "raw"] = setting(
        "What is done to features: 'power' takes square roots, keeping signs, and scales every "
        "row; 'row' scales every row; 'raw' leaves them.",
        "power",
    )
    feature_scale: float = setting("The length that rows are scaled to.", 4.0, "(0, inf)")
    projection: int = setting(
        "Columns that wide features are projected to, by a public random matrix.", 256, "[1, inf)"
    )
    project_above: int = setting("Columns above which features are projected.", 1024, "[1, inf)")
    hidden_channels: int = setting("The width of hidden layers.", 64, "[1, inf)")
    activation: Activation = setting("What follows hidden layers.", "tanh")


def check_bound(max_grad_norm: Any, clipping: str) -> None:
    """Refuse a bound that is neither a number nor, by layer, a table of numbers."""
    if not (clipping == "per_layer" and isinstance(max_grad_norm, Mapping)):
        _validate.number("max_grad_norm", max_grad_norm, "(0, inf)")
