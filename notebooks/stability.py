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
from IPython.display import Image, Markdown, display

from grpolab.report import tables
from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.report.notebook import choose_study
from grpolab.report.style import png

results, name, sentence = choose_study()
display(Markdown(sentence))
studies = [study for study in load(results, name) if len(study.cells)]

# %% [markdown]
# Lines are means over seeds, bands their 95% intervals: with three seeds they are wide.

# %%
for study in studies:
    figure, manifest = draw(study, "F1")
    display(Markdown(f"## {study.name}: {study.plan['question']}"), Image(png(figure)), Markdown(manifest.caption))

# %% [markdown]
# A run has collapsed when it lost at least .10 of accuracy and half of its gain, and did not win it back. A rate over
# three seeds says little, so its Wilson interval stands beside it.

# %%
for study in studies:
    table = tables.stability(study)
    display(Markdown(f"**{table.caption}**"), table.shown)

# %% [markdown]
# The same by picture, and the gradient norm with its spikes: counted over rollout steps, because within a batch the
# norm falls as tokens are clipped.

# %%
for study in studies:
    for name in ("F26", "F16"):
        figure, manifest = draw(study, name)
        display(Image(png(figure)), Markdown(f"**{study.name} {name}.** {manifest.caption}"))
