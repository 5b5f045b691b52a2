"""The doctor: why a training run looks the way it does, from its numbers alone."""

from grpolab.doctor.causes import Finding
from grpolab.doctor.page import CAUSES, SYMPTOMS, Diagnosis, diagnose, diagnose_log, diagnose_rows, examine

__all__ = ["CAUSES", "SYMPTOMS", "Diagnosis", "Finding", "diagnose", "diagnose_log", "diagnose_rows", "examine"]
