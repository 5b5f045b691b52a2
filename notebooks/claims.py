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
# Every claim stands in its study's file before the study is run: metric, contrast, direction, margin, test. It is then
# supported, refuted or undecided; an undecided one says how many seeds would decide it. `GRPOLAB_STUDY` names another
# study than the one planned here, `GRPOLAB_RESULTS` another folder. In a fresh clone the committed reference is read.

# %% tags=["parameters"]
import os

from IPython.display import Image, Markdown, display

from grpolab.paths import Results
from grpolab.report import tables
from grpolab.report.claims import UNDECIDED, decide
from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.report.reference import default_study
from grpolab.report.style import png

results = Results.open(os.environ.get("GRPOLAB_RESULTS", "results"))
name = os.environ.get("GRPOLAB_STUDY") or default_study(results)
studies = [study for study in load(results, name) if len(study.cells)]
claims = [claim for study in studies for claim in decide(study)]

# %% [markdown]
# All of them, as in the report and in `tables/claims.tex`.

# %%
if claims:
    table = tables.claims_table(claims)
    display(Markdown(table.caption), table.shown)

# %% [markdown]
# In words: what was decided, then what was not and why.

# %%
for is_open in (False, True):
    said = [claim for claim in claims if (claim.verdict == UNDECIDED) == is_open]
    display(Markdown("\n".join(f"- {claim.study} {claim.sentence}" for claim in said)))

# %% [markdown]
# Behind the verdicts: the difference of every arm to its baseline, paired by seed.

# %%
for study in studies:
    figure, manifest = draw(study, "F27")
    display(Image(png(figure)), Markdown(f"**{study.name} F27.** {manifest.caption}"))
