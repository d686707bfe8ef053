"""Recommendations: who will buy what, learnt so that no single customer's purchases show."""

# %% [markdown]
# # Recommendations
#
# 3,000 (synthetic) people buy items with words and prices. One person with all of their purchases
# is one unit. Items are public; how many purchases there are is not.

# %%
from graphveil import DPLink, DPPopularity, OpenLink
from graphveil.runs import Source

source = Source(data="shop:3000")
data = source.arrange(source.load()).training
print(f"{data.num_nodes:,} people, {len(data.target_x):,} items")

# %% [markdown]
# ## Train
# Withholding a person removes one loss term and alters none, however much they bought.

# %%
for method in (DPPopularity(epsilon=4.0), DPLink(epsilon=4.0), OpenLink()):
    method.fit(data)
    promise = method.certificate_.guarantee if method.private else "nothing is promised"
    print(f"{method.name:14s} MRR {method.score(data):.4f}  {promise}")

# %% [markdown]
# ## Recommend
# A list is made from its own person's purchases: it is for that person, or for whoever holds them.

# %%
best = DPLink(epsilon=4.0).fit(data).recommend(data, top=5, sources=[0, 1, 2])
for person, items in zip(best.sources, best.targets, strict=True):
    print(f"person {person}: items {', '.join(map(str, items))}")
print(best.seen_by)
