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
# # Which claims about GRPO hold here?
#
# Every claim stands in its study's file: metric, contrast, direction, margin. It is then supported, opposite,
# negligible or inconclusive, by planned looks at its seeds (`docs/statistics.md`).

# %% tags=["parameters"]
from IPython.display import Markdown, display

import grpolab as gl

study = gl.load(committed="claims")
display(Markdown(study.note))

# %% [markdown]
# The first screen of the report.

# %%
display(Markdown(study.screen()))

# %% [markdown]
# All of them, as in the report and in `tables/verdicts.tex`.

# %%
display(study.table("verdicts"))

# %% [markdown]
# In words: what was decided, then what was not.

# %%
verdicts = gl.decide(study)
open_ = verdicts["verdict"] == "inconclusive"
for rows in (verdicts[~open_], verdicts[open_]):
    display(Markdown("\n".join(f"- {row.study} {row.sentence}" for row in rows.itertuples())))

# %% [markdown]
# The difference of every arm to its baseline, paired by seed: description.

# %%
for part in study.parts:
    display(Markdown(f"**{part.name}**"), part.figure("F27"))
