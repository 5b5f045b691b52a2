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
# # Why is my ratio 1?
#
# What the ratio does within a batch, in one picture per study, and what the doctor says of every run. All its causes,
# each with a remedy: `docs/why_is_my_ratio_one.md`.

# %% tags=["parameters"]
import matplotlib.pyplot as plt
import seaborn as sns
from IPython.display import Markdown, display

import grpolab as gl

study = gl.load()
display(Markdown(study.note))

# %% [markdown]
# Before the first update of a batch the policy is the old policy: the ratio is 1, nothing can be clipped, and that is
# normal. It moves away from 1 with every further pass. An arm with one pass has a single point, at 0. Bands: 95%
# intervals over seeds, each seed's own mean first.

# %%
for part in study.parts:
    by_pass = part.updates.groupby(["facet", "arm", "seed", "iteration"], as_index=False)["clip/active"].mean()
    axes = sns.relplot(by_pass, x="iteration", y="clip/active", hue="arm", col="facet", kind="line", marker="o", seed=0)
    axes.set_axis_labels("pass over the batch", "share of tokens that are clipped").set_titles("{col_name}")
    display(Markdown(f"**{part.name}**"), axes.figure)
    plt.close(axes.figure)

# %% [markdown]
# How far the ratio reaches on later passes, over the run. A run whose line stays far below the dashed one, the usual
# clip range, has steps too small to be clipped: a small learning rate, a small gradient, weights that do not move. A
# line at 0 with several passes means that the old policy follows the live one.

# %%
for part in study.parts:
    later = part.updates[(part.updates["iteration"] > 0) | (part.updates["minibatch"] > 0)]
    reach = later.assign(reach=later["ratio/token_max"] - 1)
    axes = sns.relplot(reach, x="rollout_step", y="reach", hue="arm", col="facet", kind="line", seed=0)
    axes.set(yscale="log", ylabel="largest ratio - 1", xlabel="rollout step").set_titles("{col_name}")
    axes.refline(y=0.2)
    display(Markdown(f"**{part.name}**"), axes.figure)
    plt.close(axes.figure)

# %% [markdown]
# What the doctor says.

# %%
display(Markdown(study.diagnosis()))
