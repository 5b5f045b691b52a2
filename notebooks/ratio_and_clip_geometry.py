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
from IPython.display import Image, Markdown, display

from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.report.notebook import choose_study
from grpolab.report.style import png
from grpolab.vocabulary import ANALYTIC_FIGURES

results, name, sentence = choose_study()
display(Markdown(sentence))
*included, whole = load(results, name)
studies = [study for study in (*included, whole) if len(study.cells)]

# %% [markdown]
# The shape of every objective against the importance ratio (F9), and the weight of a token's gradient over its old and
# new probability (F10): where it is zero the token is clipped, and the corner of a negative advantage with a large
# ratio has no bound unless an outer cap cuts it.

# %%
for figure_name in ANALYTIC_FIGURES:
    figure, manifest = draw(whole, figure_name)
    display(Image(png(figure)), Markdown(f"**{figure_name}.** {manifest.caption}"))

# %% [markdown]
# In runs: spread of the log ratio (F5), and its range at each rollout step (F6).

# %%
for study in studies:
    for figure_name in ("F5", "F6"):
        figure, manifest = draw(study, figure_name)
        display(Image(png(figure)), Markdown(f"**{study.name} {figure_name}.** {manifest.caption}"))
