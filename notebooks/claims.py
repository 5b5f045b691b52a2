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
from IPython.display import Image, Markdown, display

from grpolab.paths import REFERENCE_STUDY
from grpolab.report import brief, tables
from grpolab.report.claims import INCONCLUSIVE, decide
from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.report.notebook import choose_study
from grpolab.report.style import png

results, name, sentence = choose_study(REFERENCE_STUDY)
display(Markdown(sentence))
loaded = load(results, name)
studies, claims = [study for study in loaded if len(study.cells)], decide(loaded)

# %% [markdown]
# The first screen of the report.

# %%
display(Markdown(brief.screen(loaded, claims)))

# %% [markdown]
# All of them, as in the report and in `tables/verdicts.tex`.

# %%
tested = [claim for claim in claims if claim.is_finding]
if tested:
    table = tables.verdicts(tested)
    display(Markdown(table.caption), table.shown)

# %% [markdown]
# In words: what was decided, then what was not.

# %%
for is_open in (False, True):
    said = [claim for claim in tested if (claim.verdict == INCONCLUSIVE) == is_open]
    display(Markdown("\n".join(f"- {claim.study} {claim.sentence}" for claim in said)))

# %% [markdown]
# The difference of every arm to its baseline, paired by seed: description.

# %%
for study in studies:
    figure, manifest = draw(study, "F27")
    display(Image(png(figure)), Markdown(f"**{study.name} F27.** {manifest.caption}"))
