"""The doctor: why a training run looks the way it does, from its numbers alone."""

from grpolab.doctor.evidence import Diagnosis, Finding
from grpolab.doctor.examine import diagnose, diagnose_log, diagnose_rows

__all__ = ["Diagnosis", "Finding", "diagnose", "diagnose_log", "diagnose_rows"]
