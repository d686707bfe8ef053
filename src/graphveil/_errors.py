"""The exceptions graphveil raises on purpose.

All are public names of the package (``graphveil.BudgetError``). Every one of them carries the exit
code the command line ends with::

    GraphveilError                 1   something graphveil noticed itself
    ├── InvalidInputError          2   a value, file or option is wrong (also a ValueError)
    │   └── NotFittedError             a method was not fitted yet (also scikit-learn's error)
    ├── RefusedError               3   graphveil could run this but will not
    │   ├── UnprovenError              no theorem covers the request
    │   │   └── UnsupportedEventError  an event no accountant here can price
    │   ├── BudgetError                the request would spend more than is left
    │   └── VerificationError          a signed certificate that does not hold up
    ├── ToleranceError             4   a reproduced figure is out of tolerance
    └── BrokenPromiseError         5   an audit saw less privacy than is promised

A message gives the value, the rule and the way out, in one sentence or two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class GraphveilError(Exception):
    """Base of everything graphveil raises on purpose."""

    exit_code = 1


class InvalidInputError(GraphveilError, ValueError):
    """A value, file or option does not make sense."""

    exit_code = 2


class RefusedError(GraphveilError):
    """The request is well formed, but no guarantee could be given for it."""

    exit_code = 3


class UnprovenError(RefusedError):
    """No theorem graphveil implements covers the request."""


class UnsupportedEventError(UnprovenError):
    """An event (or a place in the tree of events) that cannot be priced."""


class BudgetError(RefusedError):
    """The request would spend more than the budget has left."""


class VerificationError(RefusedError):
    """A signed certificate does not hold up: who signed it, what it says, or whose weights."""


class ToleranceError(GraphveilError):
    """A reproduced figure is further from its published value than allowed."""

    exit_code = 4


class BrokenPromiseError(GraphveilError):
    """An audit saw less privacy than is promised."""

    exit_code = 5


if TYPE_CHECKING:
    from sklearn import exceptions

    class NotFittedError(InvalidInputError, exceptions.NotFittedError):
        """A method was not fitted yet."""


def __getattr__(name: str) -> Any:
    """Make NotFittedError when it is first asked for: its other base loads scikit-learn."""
    if name != "NotFittedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn import exceptions

    body = {"__doc__": "A method was not fitted yet.", "__module__": __name__}
    made = type(name, (InvalidInputError, exceptions.NotFittedError), body)
    return globals().setdefault(name, made)
