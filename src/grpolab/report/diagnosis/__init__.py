"""The doctor: why a training run looks the way it does, from its numbers alone."""

from grpolab.report.diagnosis.doctor import diagnose, diagnose_log, diagnose_rows
from grpolab.report.diagnosis.finding import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose", "diagnose_log", "diagnose_rows"]
