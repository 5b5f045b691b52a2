"""Every setting of a run: its type, its range and one sentence. The values live in `conf/` only."""

from grpolab.settings.objective import AdaptiveEntropySettings as AdaptiveEntropySettings
from grpolab.settings.run import DiagnosticsSettings as DiagnosticsSettings
from grpolab.settings.run import RunSettings as RunSettings
from grpolab.settings.task import PretrainedModel as PretrainedModel
from grpolab.settings.task import RewardSettings as RewardSettings
from grpolab.settings.task import TaskSettings as TaskSettings
from grpolab.settings.task import TinyModel as TinyModel
