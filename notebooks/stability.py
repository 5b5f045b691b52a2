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
# # How steadily does each variant learn?
#
# For every study: learning curves, the table of stability quantities (each defined once, in
# `grpolab/quantities.py`), and their summary.

# %% tags=["parameters"]
from IPython.display import Markdown, display

import grpolab as gl

study = gl.load()
display(Markdown(study.note))

# %% [markdown]
# Lines are means over seeds, bands their 95% intervals: with three seeds they are wide.

# %%
for part in study.parts:
    display(Markdown(f"## {part.name}: {part.question}"), part.figure("F1"))

# %% [markdown]
# A run has collapsed when it lost at least .10 of accuracy and half of its gain, and did not win it back. A rate over
# three seeds says little, so its Wilson interval stands beside it.

# %%
for part in study.parts:
    display(part.table("stability"))

# %% [markdown]
# The same by picture, and the gradient norm with its spikes: counted over rollout steps, because within a batch the
# norm falls as tokens are clipped.

# %%
for part in study.parts:
    for name in ("F26", "F16"):
        display(Markdown(f"**{part.name} {name}**"), part.figure(name))
