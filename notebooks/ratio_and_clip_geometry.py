# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What does the clip do to a ratio?
#
# Two views. Without any run: objective and gradient weight of one token, from tables that `grpolab geometry` computes
# with the product's own loss code, so that the picture is the code. And from runs: how far ratios went, and how they
# spread.

# %% tags=["parameters"]
from IPython.display import Markdown, display

import grpolab as gl

study = gl.load()
display(Markdown(study.note))

# %% [markdown]
# The shape of every objective against the importance ratio (F9), and the weight of a token's gradient over its old and
# new probability (F10): where it is zero the token is clipped, and the corner of a negative advantage with a large
# ratio has no bound unless an outer cap cuts it.

# %%
for name in ("F9", "F10"):
    display(Markdown(f"**{name}**"), study.figure(name))

# %% [markdown]
# In runs: spread of the log ratio (F5), and its range at each rollout step (F6).

# %%
for part in study.parts:
    for name in ("F5", "F6"):
        display(Markdown(f"**{part.name} {name}**"), part.figure(name))
