"""What two large graphs on disk take: to build their stores, to train and to predict.

    python benchmarks/products.py --folder DIR [--only dp-gnn] [--again]
                                  [--out results/products.json]

``products`` has the size of ogbn-products, ``large`` a billion directed messages. Both are planted
(whom a line names has the same class with probability 0.8) and written as Parquet, a few lines at a
time; ends are uniform, so that no order of the nodes helps the cache. A store is built from the
Parquet, which is deleted then; the folder keeps the stores. Every row of the result is a process
of its own with one thread. Rows that the file has are not run again, unless ``--again``.

``wall`` are seconds of a clock, ``processor`` those of the process, ``gib`` the most memory held
beside pages of files. ``load`` is the machine's load average before and after: above 1 it had other
work beside a row. ``hops`` are a part of gap's training: what is sent, its sums with noise, and the
sums that lists are read by. ``python tools/facts.py`` puts the figures on their page.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from scale import Planted, Watch

GRAPHS = {
    "products": {
        "nodes": 2_449_029, "lines": 61_859_140, "features": 100, "classes": 47,
        "directed": False, "trained": 0.10005,
    },
    "large": {
        "nodes": 20_000_000, "lines": 1_000_000_000, "features": 16, "classes": 10,
        "directed": True, "trained": 0.5,
    },
}  # fmt: skip
ROWS = {
    "build": "products", "dp-gnn": "products", "gap": "products", "late-graph": "products",
    "build large": "large", "late-graph large": "large",
}  # fmt: skip
ASKED = {  # the most seconds of a clock, and GiB
    "build": {"build": 900, "gib": 4},
    "dp-gnn": {"fit": 300, "predict": 180, "gib": 4},
    "gap": {"hops": 180},
    "late-graph": {"fit and predict": 300},
    "build large": {"gib": 16},
    "late-graph large": {"gib": 16},
}
BATCH, STEPS, CAP = 10_000, 100, 7
_AT_ONCE = 1 << 20


# --- graphs ---------------------------------------------------------------------------------------


def write_parquet(folder, nodes, lines, features, classes, seed=0, **_):
    """The tables of a planted graph, with no more in memory than one number of each node."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(seed)
    planted = Planted(rng, nodes, classes)
    means = 0.3 * rng.standard_normal((classes, features), dtype=np.float32)
    unfinished = folder.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)

    def write(name, count, columns_of):
        """Parts of a table into a file."""
        place, writer = unfinished / f"{name}.parquet", None
        for first in range(0, count, _AT_ONCE):
            table = pa.table(columns_of(first, min(first + _AT_ONCE, count)))
            writer = writer or parquet.ParquetWriter(place, table.schema, compression="none")
            writer.write_table(table)
        writer.close()

    def rows(first, last):
        y = planted.y[first:last]
        x = means[y] + rng.standard_normal((last - first, features), dtype=np.float32)
        named = {f"x{column}": x[:, column] for column in range(features)}
        return {"id": np.arange(first, last), "label": y.astype(np.int64), **named}

    def ends(first, last):
        source = rng.integers(nodes, size=last - first)
        target = planted.others(rng, source)
        return {"source": source.astype(np.int32), "target": target.astype(np.int32)}

    write("nodes", nodes, rows)
    write("edges", lines, ends)
    unfinished.rename(folder)


def build(folder, name):
    """A store of a graph's Parquet, built with the usual bound of memory."""
    from graphveil.data.store_building import build_store

    sizes, tables = GRAPHS[name], folder / f"{name}-parquet"
    with Watch() as watch:
        manifest = build_store(
            tables, folder / name, classes=sizes["classes"], directed=sizes["directed"], force=True
        )
    return {
        "nodes": manifest.num_nodes,
        "messages": manifest.num_messages,
        "parquet_gib": _size(tables),
        "store_gib": _size(folder / name),
        "build": figures_of(watch),
    }


def _size(folder):
    return sum(path.stat().st_size for path in folder.iterdir()) / 2**30


# --- runs -----------------------------------------------------------------------------------------


def figures_of(watch):
    """Seconds and memory of what was watched."""
    return {"wall": watch.wall, "processor": watch.seconds, "gib": watch.peak / 2**30}


class Clock:
    """Adds up the seconds of calls: ``clock.wrap(module, "name")``, before anybody imports it."""

    def __init__(self):
        self.wall = self.processor = 0.0

    def wrap(self, module, name):
        """Time every call of a module's function."""
        function = getattr(module, name)

        def timed(*arguments, **named):
            with Watch() as watch:
                result = function(*arguments, **named)
            self.wall += watch.wall
            self.processor += watch.seconds
            return result

        setattr(module, name, timed)


def train(folder, name, graph):
    """Fit and predict every node, of a graph in a store."""
    import graphveil
    from graphveil.methods import DPGNN, GAP, LateGraph, hop_training, sending

    share = GRAPHS[graph]["trained"]
    rest = (1 - share) / 2
    data = graphveil.split(graphveil.load(folder / graph), (share, rest, rest))
    count = int(data.train_mask.sum())
    method = {
        "dp-gnn": lambda: DPGNN(
            epsilon=8.0, sender_cap=CAP, sample_rate=min(1.0, BATCH / count), steps=STEPS
        ),
        "gap": lambda: GAP(epsilon=8.0, hops=2),
        "late-graph": lambda: LateGraph(epsilon=8.0),
    }[name]()
    hops = Clock()
    if name == "gap":
        for module, function in (
            (sending, "prepare_to_send"), (sending, "send"), (sending, "release_sums"),
            (hop_training, "lay_up"),
        ):  # fmt: skip
            hops.wrap(module, function)
    with Watch() as fit:
        method.fit(data)
    with Watch() as predict:
        answers = method.predict_proba(data)
    right = (answers.argmax(1) == data.y)[data.test_mask]
    figures = {"trained_nodes": count, "fit": figures_of(fit), "predict": figures_of(predict)}
    if name == "gap":
        figures["hops"] = {"wall": hops.wall, "processor": hops.processor}
    figures["test_accuracy"] = float(right.float().mean())
    return figures


def run_here(folder, row):
    """One row in this process; a JSON line on stdout."""
    graph, before = ROWS[row], os.getloadavg()[0]
    if row.startswith("build"):
        figures = build(folder, graph)
    else:
        figures = train(folder, row.split()[0], graph)
    figures["load"] = [before, os.getloadavg()[0]]
    print(json.dumps(figures))


def run(folder, row):
    """One row in a process of its own, with one thread."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    code = [sys.executable, "-W", "ignore", __file__, "--folder", str(folder), "--row", row]
    done = subprocess.run(code, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{row} ended with {done.returncode}.")
    return json.loads(done.stdout.splitlines()[-1])


def measure(folder, rows, out, *, again):
    """Every row that the file has not, written as soon as it is known."""
    result = json.loads(out.read_text()) if out.exists() else {"rows": {}}
    result["machine"] = {"cores": os.cpu_count(), "threads": 1}
    for row in rows:
        if row in result["rows"] and not again:
            continue
        graph = ROWS[row]
        tables = folder / f"{graph}-parquet"
        if row.startswith("build"):
            if not tables.exists():
                write_parquet(tables, **GRAPHS[graph])
        elif not (folder / graph / "manifest.json").exists():
            raise SystemExit(f"{row} needs the store {folder / graph}; run 'build' first.")
        result["rows"][row] = {"graph": graph, "asked": ASKED[row], **run(folder, row)}
        out.write_text(json.dumps(result, indent=1) + "\n")
        shutil.rmtree(tables, ignore_errors=True)
        print(row, json.dumps(result["rows"][row]), flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", required=True, help="of the stores; 30 GiB while they are built"
    )
    parser.add_argument("--only", choices=ROWS, help="one row; default: all")
    parser.add_argument("--again", action="store_true", help="also rows that the file has")
    parser.add_argument("--out", default="results/products.json")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(options.folder)
    if options.row:
        run_here(folder, options.row)
        return
    rows = [options.only] if options.only else ROWS
    measure(folder, rows, Path(options.out), again=options.again)


if __name__ == "__main__":
    main()
