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
# # One word, many functions: 'GRPO' in each framework
#
# The study `dialects` trains one policy with the loss of each framework, from the same start on the same prompts with
# the same sampling noise.

# %% tags=["parameters"]
import os

from IPython.display import Markdown, display

import grpolab as gl

studies = []
try:
    studies = gl.load(os.environ.get("GRPOLAB_STUDY") or "dialects").parts[-1:]
except gl.RequestError as error:  # a clone has no runs of it until it is trained
    display(Markdown(f"{error}: `make sweep STUDY=dialects` trains it."))

# %% [markdown]
# First the number that nobody should compare across frameworks: the clip fraction of the same updates, counted as each
# framework counts it (D1).

# %%
for study in studies:
    display(study.figure("D1"))

# %% [markdown]
# Then what the losses themselves do: final accuracy minus plain GRPO's (F27), entropy (F12), gradient norms (F16).

# %%
for study in studies:
    for name in ("F27", "F12", "F16"):
        display(Markdown(f"**{name}**"), study.figure(name))

# %% [markdown]
# Where every arm ends, and how steadily it gets there.

# %%
for study in studies:
    display(study.table("scores"), study.table("stability"))
