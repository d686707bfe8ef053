"""Names of a package that load on first use, so that importing it loads none of its modules."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(
    namespace: dict[str, Any], names_of: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the package whose globals are ``namespace``.

    ``names_of`` has the public names of each module, spaces between them; a module ``package.name``
    with the name ``name`` is that name's value itself.
    """
    package = namespace["__name__"]
    module_of = {name: module for module, names in names_of.items() for name in names.split()}

    def load(name: str) -> Any:
        """Load a public name from its module the first time it is asked for."""
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(module_of[name])
        value = module if module.__name__ == f"{package}.{name}" else getattr(module, name)
        namespace[name] = value  # the next look-up finds it without coming here
        return value

    return load, lambda: sorted({*namespace, *module_of})
