"""Documents that link to each other: text features, and a private model of the documents."""

# %% [markdown]
# # Documents
#
# 4,000 notes of three topics are generated. A word in each may be of another topic, and each links
# to notes that are mostly of its own. A note and its links are one unit. `debian_documents.py` does
# this with 51,214 real packages.

# %%
import csv
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from graphveil import DPMLP, GraphSplit, LateGraph, split
from graphveil.data import text

work = Path(mkdtemp())
dice = np.random.default_rng(0)
TOPICS = {
    "money": "loan bank rate fund tax price bond credit market share",
    "pets": "dog cat food leash vet fur puppy walk toy cage",
    "travel": "train hotel beach ticket map flight city guide tour road",
}
COMMON = "the new old good was with about very some many day time people thing"


def word_of(topic: str) -> str:
    return str(dice.choice(TOPICS[topic].split()))


# %% [markdown]
# ## Two tables

# %%
topics = dice.choice(list(TOPICS), 4000)
with (work / "docs.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["id", "text", "topic"])
    for number, topic in enumerate(topics):
        other = dice.choice(list(TOPICS))
        words = [*dice.choice(COMMON.split(), 12), word_of(topic), word_of(other)]
        rows.writerow([f"note-{number}", " ".join(words), topic])
with (work / "links.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["source", "target"])
    for number, topic in enumerate(topics):
        near = dice.choice(np.flatnonzero(topics == topic), 3, replace=False)
        far = dice.choice(4000, 1)
        rows.writerows([f"note-{number}", f"note-{other}"] for other in {*near, *far} - {number})

# %% [markdown]
# ## Features
# A public hash gives each word its column. A vocabulary counted on these notes would be a release.

# %%
data = text.build(
    work / "docs.csv",
    work / "links.csv",
    text.Features("hash", dimension=256),
    label="topic",
    classes=sorted(TOPICS),
)
data = split(data)

# %% [markdown]
# ## Three ways to train, one promise
# `dp-mlp` reads no link. `late-graph` reads links when it predicts. `graph-split` cuts the graph in
# random groups and trains on what is left.

# %%
for method in (DPMLP(epsilon=4.0), LateGraph(epsilon=4.0), GraphSplit(epsilon=4.0)):
    method.fit(data)
    print(f"{type(method).__name__:10s} {method.score(data):.1%}  {method.certificate_.guarantee}")
