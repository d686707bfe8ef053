"""An audit: a promise on trial from above (replay, law of the noise) and from below (canaries)."""

# %% [markdown]
# # Does the promise hold?
#
# A proof can be right and its code wrong. An audit trains with the same secret stream on data and
# on its neighbours, draws each release many times, and hides canaries in one run.

# %%
from graphveil import Facts, LateGraph, split
from graphveil.audit.mechanism import audit_plan
from graphveil.audit.one_run import audit_run
from graphveil.audit.replay import replay
from graphveil.data.synthetic import social_network

data = split(social_network(1_000))
method = LateGraph(epsilon=4.0)

# %% [markdown]
# ## Replay
# No loss term may change but the one that was withheld.

# %%
finding = replay(method, data, most=4)
print(f"replay holds: {finding.holds}, {finding.figures['neighbours']} neighbours")
for violation in finding.violations:
    print(violation)

# %% [markdown]
# ## The law of each release
# Many draws with and without a unit bound epsilon from below. It must not pass what is charged.

# %%
for finding in audit_plan(method.plan(Facts.of(data)), draws=20_000):
    below = finding.epsilon_at_least
    shown = "" if below is None else f", epsilon at least {below:.2f}"
    print(f"{finding.name}: holds {finding.holds}{shown}")

# %% [markdown]
# ## Canaries in one run
# Directions in weight space, each put in by a coin, are looked for in what was released.

# %%
for finding in audit_run(method, data, canaries=1000):
    print(
        f"{finding.name}: holds {finding.holds}, at least {finding.epsilon_at_least or 0:.2f} of 4"
    )
