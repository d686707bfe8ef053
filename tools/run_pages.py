"""Run what the documentation shows: ``python tools/run_pages.py [PAGE ...]``.

Every page runs in a process and a directory of its own, from top to bottom, without a network:
commands through the command line's own entry, Python in one namespace a page. What must hold:

- a command ends with exit code 0, or with the code and the message that the page shows;
- what ``account``, ``calibrate``, ``claims``, ``choose`` and ``plan`` print is what the page shows,
  where it shows something (a line of three dots stands for any lines);
- Python ends without an error, and prints what a block marked ``prints`` says.

So do the examples (``examples/*.py``), unless a line ``# not run: why`` says otherwise. What has
run is not run again until it or the package changes (``build/pages`` has stamps).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pages

STAMPS = pages.ROOT / "build" / "pages"
LIMIT = 900  # seconds for one page, which may share its cores with much else
READMES = ("../README.md", "../examples/README.md")  # seen from docs
SETTLED = ("account", "calibrate", "claims", "choose", "plan")  # they print the same each time


class PageError(Exception):
    """A block that does not do what its page says."""


def main(arguments: list[str] | None = None) -> int:
    """Run pages; 1 if any fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", help="below docs; default: all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="also what has run already")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # this process
    options = parser.parse_args(arguments)
    if options.here:
        return run_here(options.pages[0])
    names = [name.removeprefix("docs/") for name in options.pages]
    names = names or [*pages.page_names(), *READMES, *examples()]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda name: run_apart(name, again=options.again), names))
    failed = [name for name, holds in zip(names, results, strict=True) if not holds]
    print(f"{len(names) - len(failed)} of {len(names)} pages and examples run as they stand")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of processor time")
    return 1 if failed else 0


def run_apart(name: str, *, again: bool) -> bool:
    """Run a page in a process of its own, unless its stamp says that it has run as it is."""
    words = [sys.executable, __file__, "--here", name]
    if name.endswith(".py"):
        words = [sys.executable, str(pages.ROOT / name)]
    elif not any(block.is_shell or block.language == "python" for block in pages.blocks(name)):
        return True
    stamp = STAMPS / name.replace("/", "-")
    key = fingerprint(name)
    if not again and stamp.exists() and stamp.read_text() == key:
        print(f"{name}: has run")
        return True
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        process = subprocess.Popen(
            words, cwd=folder, env=environment(folder), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"{process.communicate()[0]}\nnot done after {LIMIT} s"
    word = "runs" if process.returncode == 0 else "FAILS"
    print(f"{name}: {word}, {time.monotonic() - began:.1f} s", flush=True)
    if process.returncode:
        print(output[-6000:], flush=True)
        return False
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)
    return True


def examples() -> list[str]:
    """The examples that run offline, as paths from the root."""
    paths = sorted((pages.ROOT / "examples").glob("*.py"))
    return [f"examples/{path.name}" for path in paths if "\n# not run: " not in path.read_text()]


def fingerprint(name: str) -> str:
    """What decides how a page runs: its text, the package and these tools."""
    folder = pages.ROOT if name.endswith(".py") else pages.DOCS
    digest = hashlib.sha256((folder / name).read_bytes())
    package = sorted((pages.ROOT / "src").rglob("*.py"))
    for path in (*package, Path(pages.__file__), Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def environment(folder: str) -> dict[str, str]:
    """Where a page runs: one thread, no data of this machine, no network, terminals 80 wide."""
    kept = {name: value for name, value in os.environ.items() if name != "GRAPHVEIL_DATA"}
    paths = os.pathsep.join([str(pages.ROOT / "src"), str(pages.ROOT / "tools")])
    binaries = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return kept | {
        "COLUMNS": "80",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": binaries,
        "PYTHONPATH": paths,
        "XDG_CACHE_HOME": f"{folder}/.cache",
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }


def run_here(name: str) -> int:
    """Run the blocks of a page in this directory."""
    page = Page()
    for block in pages.blocks(name):
        try:
            page.run(block)
        except PageError as error:
            print(f"{block.place}: {error}")
            return 1
    return 0


class Page:
    """A page while it runs: the names of its Python, and what was printed last."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "page"}
        self.printed = ""
        self.code = 0

    def run(self, block: pages.Block) -> None:
        """Run one block, as the comment before it says."""
        if block.directive == "not run":
            return
        if block.directive == "file":
            path = Path(block.reason)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text.strip("\n") + "\n")
        elif block.directive == "prints":
            compare(block.text.splitlines(), self.printed)
        elif block.language == "python":
            self.run_python(block)
        elif block.is_shell:
            for command in pages.commands(block):
                if not command.is_form:
                    self.run_command(command)

    def run_python(self, block: pages.Block) -> None:
        """Run a block of Python in the page's names."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile("\n" * block.line + block.text, block.page, "exec"), self.names)
            except Exception as error:
                import traceback

                raise PageError(traceback.format_exc(limit=-3)) from error
        self.printed = out.getvalue()

    def run_command(self, command: pages.Command) -> None:
        """Run one command, and hold it against what is shown below it."""
        words = shlex.split(command.line)
        shown = [line for line in command.shown if line.strip()]
        if command.line == "echo $?":
            if shown != [str(self.code)]:
                raise PageError(f"{command.line}: the code is {self.code}, shown is {shown}")
            return
        if words[0] == "cat" and len(words) == 2 and shown:  # the page says what is in the file
            Path(words[1]).write_text("\n".join(shown) + "\n")
            return
        refuses = bool(shown) and shown[0].startswith("graphveil: ")
        if words[0] == "graphveil" and not re.search(r"[|>$]", command.line):
            self.code, out, err = call(words[1:])
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", as_shell(command.line)],
                capture_output=True,
                text=True,
            )
            self.code, out, err = done.returncode, done.stdout, done.stderr
        if (self.code != 0) != refuses:
            raise PageError(f"{command.line}: exit code {self.code}\n{err}")
        if refuses:
            compare(shown, err)
        elif shown and words[0] == "graphveil" and words[1] in SETTLED:
            compare(shown, out)


def as_shell(line: str) -> str:
    """The command for bash, where ``graphveil`` may not be installed."""
    return re.sub(
        r"(?<![\w./-])(?<!-m )graphveil(?= )", f"{shlex.quote(sys.executable)} -m graphveil", line
    )


def call(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a graphveil command in this process."""
    from graphveil import cli

    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as left:
            code = left.code
    return int(code or 0), out.getvalue(), err.getvalue()


def compare(shown: list[str], printed: str) -> None:
    """Whether lines are what was printed, to nine digits; three dots stand for any lines."""
    pattern = ""
    for line in (shorten(line.strip()) for line in shown if line.strip()):
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n"
    lines = "".join(f"{shorten(line.strip())}\n" for line in printed.splitlines() if line.strip())
    if not re.fullmatch(pattern, lines):
        raise PageError("shown is\n" + "\n".join(shown) + f"\nprinted is\n{printed}")


def shorten(line: str) -> str:
    """A line whose numbers have nine digits at most: the last ones differ between processors."""
    return re.sub(r"\d+\.\d{9,}", lambda match: f"{float(match[0]):.9g}", line)


if __name__ == "__main__":
    sys.exit(main())
