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
from dataclasses import replace

from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grpolab.doctor import SYMPTOMS
from grpolab.doctor.evidence import USUAL_RANGE
from grpolab.doctor.section import section
from grpolab.report.figures import panels
from grpolab.report.load import StudyRuns, load
from grpolab.report.notebook import choose_study
from grpolab.report.stability import after_first_step
from grpolab.report.statistics.intervals import share_band
from grpolab.report.style import paper_style, png

results, name, sentence = choose_study()
display(Markdown(sentence))
studies = [study for study in load(results, name) if len(study.cells)]

# %% [markdown]
# Before the first update of a batch the policy is the old policy: the ratio is 1, nothing can be clipped, and that is
# normal. It moves away from 1 with every further pass. An arm with one pass has a single point, at 0.


# %%
@paper_style()
def draw_passes(study: StudyRuns) -> Figure:
    """Draw the clip fraction by pass over the batch: 0 on the first, by construction."""
    sheet = panels.Sheet(study, study.facets, ["clipped tokens by pass over the batch"], share_x=False)
    for (facet, _), panel in sheet.grid.items():
        for arm, updates in study.by_arm("updates", facet):
            by_pass = panels.pivot_seeds(updates, "iteration", "clip/active")
            sheet.draw_means(panel, by_pass, sheet.styles[arm], share_band)
        panel.yaxis.set_major_formatter(PercentFormatter(1))
    sheet.start_at_zero()
    sheet.label_x("pass over the batch")
    sheet.draw_legend()
    return sheet.figure


for study in studies:
    display(Markdown(f"**{study.name}**"), Image(png(draw_passes(study))))

# %% [markdown]
# How far the ratio reaches on later passes, over the run. A run whose line stays far below the dashed one, the usual
# clip range, has steps too small to be clipped: a small learning rate, a small gradient, weights that do not move. A
# line at 0 with several passes means that the old policy follows the live one.


# %%
@paper_style()
def draw_reach(study: StudyRuns) -> Figure:
    """Draw the largest ratio - 1 on updates after a batch's first, over the run, and the usual clip range."""
    later = after_first_step(study.updates)
    shown = replace(study, updates=later.assign(reach=later["ratio/token_max"] - 1))
    sheet = panels.draw_curves(shown, {"largest ratio - 1": ("updates", "reach")})
    for panel in sheet.grid.values():
        panel.set_yscale("symlog", linthresh=1e-3)
        panel.axhline(USUAL_RANGE["token"], color="0.4", linewidth=0.7, linestyle="--")
    panels.note_gaps(sheet.figure, shown)
    return sheet.figure


for study in studies:
    display(Markdown(f"**{study.name}**"), Image(png(draw_reach(study))))

# %% [markdown]
# What the doctor says.

# %%
display(Markdown(section(studies)))

# %% [markdown]
# Every cause that it knows, and what to try.

# %%
for symptom in SYMPTOMS:
    causes = [
        f"- `{cause.name}`: {cause.sentences['says']} {cause.sentences.get('remedy', '')}" for cause in symptom.causes
    ]
    display(Markdown("\n".join([f"**{symptom.question}**", "", *causes])))
