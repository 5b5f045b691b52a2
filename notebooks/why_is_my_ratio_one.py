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
# What the ratio does within a batch, in one picture per study, and what the doctor says of every run.

# %% tags=["parameters"]
from IPython.display import Image, Markdown, display

from grpolab.doctor import SYMPTOMS
from grpolab.doctor.pictures import passes, reach
from grpolab.doctor.section import section
from grpolab.report.load import load
from grpolab.report.notebook import choose_study
from grpolab.report.style import png

results, name, sentence = choose_study()
display(Markdown(sentence))
studies = [study for study in load(results, name) if len(study.cells)]

# %% [markdown]
# Before the first update of a batch the policy is the old policy: the ratio is 1, nothing can be clipped, and that is
# normal. It moves away from 1 with every further pass. An arm with one pass has a single point, at 0.

# %%
for study in studies:
    display(Markdown(f"**{study.name}**"), Image(png(passes(study))))

# %% [markdown]
# How far the ratio reaches on later passes, over the run. A run whose line stays far below the dashed one, the usual
# clip range, has steps too small to be clipped: a small learning rate, a small gradient, weights that do not move. A
# line at 0 with several passes means that the old policy follows the live one.

# %%
for study in studies:
    display(Markdown(f"**{study.name}**"), Image(png(reach(study))))

# %% [markdown]
# What the doctor says.

# %%
display(Markdown(section(studies)))

# %% [markdown]
# Every cause that it knows, and what to try.

# %%
for symptom in SYMPTOMS:
    causes = [f"- `{cause.name}`: {cause.says} {cause.remedy}" for cause in symptom.causes]
    display(Markdown("\n".join([f"**{symptom.question}**", "", *causes])))
