"""A ledger for a team: one budget for life, runs that are charged to it, one that is refused."""

# %% [markdown]
# # One budget for a team
#
# The same people's data is trained on again and again. A ledger knows what was ever spent, and
# refuses what would overdraw. Here it is a file; a team's is `postgresql://USER@HOST/DATABASE`.

# %%
from pathlib import Path
from tempfile import mkdtemp

from graphveil import DPMLP, BudgetError, LateGraph, Ledger
from graphveil.runs import Run, Source

work = Path(mkdtemp())
people = Source(data="social")

# %% [markdown]
# ## Open an account
# Delta is for life as well: below one in the number of people.

# %%
ledger = Ledger(work / "team.ledger")
ledger.open("members", epsilon=5.0, delta=1e-5, unit="node", who="members of the network")

# %% [markdown]
# ## Two runs
# Each is reserved before its data is loaded, and settled when it is trained.

# %%
for name, method in (("mlp", DPMLP(epsilon=1.0)), ("graph", LateGraph(epsilon=2.0))):
    metrics = Run(work / name).train(method, people, ledger=ledger.path)
    print(f"{name}: accuracy {metrics['test_accuracy']:.1%}")

# %% [markdown]
# ## A third asks for too much
# It is refused before any data is read.

# %%
try:
    Run(work / "third").train(LateGraph(epsilon=8.0), people, ledger=ledger.path)
except BudgetError as refusal:
    print(refusal)

# %% [markdown]
# ## What an auditor sees

# %%
state = ledger.verify()
print(f"{len(state.account('members').charged)} runs are charged, the chain holds")
