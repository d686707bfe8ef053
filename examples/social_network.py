"""A private model of a social network, cell by cell."""

# %% [markdown]
# # A private model of a social network
#
# 20,000 (synthetic) people, their friendships and some interests; the community of some is known.
# Predict it for the others, so that no single person's row shows in the model.

# %%
from graphveil import DPGNN, METHODS, Facts, load, split

# %% [markdown]
# ## What would it cost?
# A plan needs public facts only.

# %%
facts = Facts(num_nodes=20_000, num_features=64, num_classes=6, num_train=15_000)
method = DPGNN(epsilon=8.0)
for name, value in method.plan(facts).details.items():
    print(f"{name:18s} {value:g}")

# %% [markdown]
# ## Train
# Noise and batches come from the operating system; the seed is for the split and the first weights.

# %%
data = split(load("social"), seed=0)
method.fit(data)
print(f"private GNN      {100 * method.score(data):.1f} %")

# %% [markdown]
# ## Beside the honest baseline
# An MLP without privacy reads each person's own interests, and no friendship.

# %%
print(f"MLP, no privacy  {100 * METHODS['mlp']().fit(data).score(data):.1f} %")

# %% [markdown]
# ## The certificate

# %%
print(method.certificate_)

# %% [markdown]
# ## Predict without showing one friend's data to another
# Each noisy prediction is charged, and is for its own person.

# %%
method.predict(data, mode="noisy", epsilon=2.0)
print(method.certificate_.guarantee)
