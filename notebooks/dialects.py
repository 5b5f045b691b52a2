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
from IPython.display import Image, Markdown, display

from grpolab.report import tables
from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.report.notebook import choose_study
from grpolab.report.plans import studies_of
from grpolab.report.style import png

results, name, sentence = choose_study("dialects", only=True)
display(Markdown(sentence))
studies = load(results, name)[-1:] if name in studies_of(results) else []  # none in a clone until it is trained
if not studies:
    display(Markdown(f"`{name}` is not trained yet: `make sweep STUDY={name}`."))

# %% [markdown]
# First the number that nobody should compare across frameworks: the clip fraction of the same updates, counted as each
# framework counts it (D1).

# %%
for study in studies:
    figure, manifest = draw(study, "D1")
    display(Image(png(figure)), Markdown(manifest.caption))

# %% [markdown]
# Then what the losses themselves do: final accuracy minus plain GRPO's (F27), entropy (F12), gradient norms (F16).

# %%
for study in studies:
    for figure_id in ("F27", "F12", "F16"):
        figure, manifest = draw(study, figure_id)
        display(Image(png(figure)), Markdown(f"**{figure_id}.** {manifest.caption}"))

# %% [markdown]
# Where every arm ends, and how steadily it gets there.

# %%
for table in (table for study in studies for table in (tables.scores(study), tables.stability(study))):
    display(Markdown(f"**{table.caption}**"), table.shown)
