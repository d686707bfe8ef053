"""A hospital's tables, from a folder to the page that a privacy officer signs."""

# %% [markdown]
# # A hospital's tables
#
# 5,000 (synthetic) patients with ages, postcodes, dates and empty cells, and contacts between them.
# 3 in 100 die. Rank the others by risk, so that no single patient's data shows in the model.

# %%
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import pandas as pd

from graphveil import LateGraph, load, split
from graphveil.runs import Run, Source

work = Path(mkdtemp())


def graphveil(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "graphveil", *map(str, words)], check=True)


# %% [markdown]
# ## The tables
# Two csv files, and a public schema: what each column holds, and in which range.

# %%
graphveil("data", "export", "hospital", "--out", work / "ward")
print(pd.read_csv(work / "ward/nodes.csv").head(3).T)

# %% [markdown]
# ## Train
# A run is a directory: model, certificate, what was charged, metrics that stay with the owner.

# %%
run = Run(work / "run")
run.train(LateGraph(epsilon=2.0), Source(data=str(work / "ward")))
method = run.read()
print(method.certificate_.guarantee)

# %% [markdown]
# ## Who is at risk?
# Each row reads rows of patients up to three contacts away: for the ward, not for the public.

# %%
data = split(load(work / "ward"))
risk = method.predict_frame(data).sort_values("rank")
print(risk.head())

# %% [markdown]
# ## The officer's page

# %%
graphveil("report", run.directory, "--for", "officer", "--out", work / "officer.html")
print(f"open {work / 'officer.html'}")
