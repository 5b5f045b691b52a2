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
from IPython.display import Image, Markdown, display

from grpolab.report import tables
from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.report.notebook import choose_study
from grpolab.report.sentences import findings
from grpolab.report.style import png

results, name, sentence = choose_study()
display(Markdown(sentence))
studies = [study for study in load(results, name) if len(study.cells)]

# %% [markdown]
# What the runs show, in sentences computed from their journals.

# %%
for study in studies:
    display(Markdown(f"## {study.name}\n\n" + "\n".join(f"- {sentence}" for sentence in findings(study))))

# %% [markdown]
# Clip fractions per variant. `after first`: without the optimiser step at which nothing can be clipped.

# %%
for study in studies:
    table = tables.clipping(study)
    display(Markdown(f"**{table.caption}**"), table.shown)

# %% [markdown]
# Over time (F2); against the ceiling, on a log scale (F3); and what any other range would have clipped in the same
# runs, for either ratio level (F4). Fractions of different arms are not one experiment, because drift adapts to the
# rule; F4 compares on the same data.

# %%
for study in studies:
    for name in ("F2", "F3", "F4"):
        figure, manifest = draw(study, name)
        display(Image(png(figure)), Markdown(f"**{study.name} {name}.** {manifest.caption}"))
