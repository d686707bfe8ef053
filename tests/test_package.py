"""The public surface: everything exported exists, is documented, and loads no more than it must."""

import ast
import inspect
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import graphveil
from graphveil import _errors


def names_for_type_checkers() -> set[str]:
    (block,) = (
        node for node in ast.parse(inspect.getsource(graphveil)).body if isinstance(node, ast.If)
    )
    imports = (node for node in block.body if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports for alias in node.names}


def documented_names() -> list[str]:
    table = graphveil.__doc__.split("\n====")[1]
    names = [line.split()[0] for line in table.splitlines()[1:] if line.strip()]
    return names + re.findall(r"(\w+Error)  ", graphveil.__doc__)  # those in the tree


def test_exported_members():
    """Importable, documented in the module's docstring, known to type checkers; none missing."""
    exported = set(graphveil.__all__) - {"__version__"}
    assert len(graphveil.__all__) == len(exported) + 1
    for name in exported:
        assert getattr(graphveil, name) is not None
    assert sorted(documented_names()) == sorted(exported)
    assert names_for_type_checkers() == exported
    assert exported <= set(dir(graphveil))
    assert sorted(" ".join(graphveil._NAMES_OF.values()).split()) == sorted(exported)
    public = {
        name
        for name, value in vars(_errors).items()
        if isinstance(value, type) and issubclass(value, _errors.GraphveilError)
    }
    assert public <= exported
    assert {method.__name__ for method in graphveil.METHODS.values()} <= exported


def test_every_error_stands_in_the_tree():
    for name in ("NotFittedError", *vars(_errors)):
        error = getattr(_errors, name)
        if isinstance(error, type) and issubclass(error, Exception):
            assert f" {name} " in _errors.__doc__
            assert issubclass(error, graphveil.GraphveilError)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    for module in (graphveil, _errors):
        with pytest.raises(AttributeError, match="no_such_name"):
            module.no_such_name  # noqa: B018


def test_not_fitted_is_also_scikit_learns():
    from sklearn.exceptions import NotFittedError

    error = graphveil.NotFittedError("call 'fit'")
    assert isinstance(error, graphveil.InvalidInputError)
    assert isinstance(error, NotFittedError)
    assert (str(error), error.exit_code) == ("call 'fit'", 2)
    assert graphveil.NotFittedError is _errors.NotFittedError
    assert type(pickle.loads(pickle.dumps(error))) is graphveil.NotFittedError


@pytest.mark.parametrize(
    "code, absent",
    [
        ("graphveil.BudgetError, dir(graphveil)", "numpy sklearn torch dp_accounting"),
        ("graphveil.epsilon_of, graphveil.Certificate", "sklearn torch pandas"),
        ("graphveil.NotFittedError", "torch dp_accounting"),
    ],
)
def test_names_load_no_more_than_they_need(code, absent):
    script = f"import sys, graphveil; {code}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(absent.split()) & set(run.stdout.split())


def test_runs_need_not_be_imported_first():
    script = "import graphveil; print(graphveil.runs.Run.__name__)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "Run"


# --- what is installed ----------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
IMPORTED_AS = {  # where a package's name is not its module's
    "attrs": "attr", "dp-accounting": "dp_accounting", "psycopg[binary]": "psycopg",
    "pyyaml": "yaml", "scikit-learn": "sklearn", "sentence-transformers": "sentence_transformers",
    "torch-geometric": "torch_geometric",
}  # fmt: skip
FOR_DEVELOPMENT = ("dev", "docs")


def declared() -> dict[str, set[str]]:
    """The modules that the package, and each extra for users, declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {IMPORTED_AS.get(name, name) for name in (re.split("[<>=]", one)[0] for one in ones)}
        for extra, ones in lists.items()
        if extra not in FOR_DEVELOPMENT
    }


def imported() -> set[str]:
    """The packages that the source imports, also by name and where it is too late to notice."""
    modules = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules.add(node.module)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                modules |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    packages = {module.partition(".")[0] for module in modules}
    return packages - set(sys.stdlib_module_names) - {"graphveil"}


def test_what_is_imported_is_declared():
    assert imported() <= set().union(*declared().values())


def test_what_is_declared_is_imported():
    """By an extra, too: none brings what nobody reads."""
    for extra, modules in declared().items():
        assert modules <= imported(), extra
