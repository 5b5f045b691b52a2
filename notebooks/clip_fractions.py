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
# # What does clipping do, and when is its fraction zero?
#
# A clip fraction is never one number: below or above the range, of all tokens or of those with an advantage, at the
# first optimiser step on a batch (where it is 0 by construction) or later.

# %% tags=["parameters"]
from IPython.display import Markdown, display

import grpolab as gl

study = gl.load()
display(Markdown(study.note))

# %% [markdown]
# What the runs show, in sentences computed from their journals.

# %%
for part in study.parts:
    display(Markdown(f"## {part.name}\n\n" + "\n".join(f"- {sentence}" for sentence in part.sentences())))

# %% [markdown]
# Clip fractions per variant. `after first`: without the optimiser step at which nothing can be clipped.

# %%
for part in study.parts:
    display(part.table("clipping"))

# %% [markdown]
# Over time (F2); against the ceiling, on a log scale (F3); and what any other range would have clipped in the same
# runs, for either ratio level (F4). Fractions of different arms are not one experiment, because drift adapts to the
# rule; F4 compares on the same data.

# %%
for part in study.parts:
    for name in ("F2", "F3", "F4"):
        display(Markdown(f"**{part.name} {name}**"), part.figure(name))
