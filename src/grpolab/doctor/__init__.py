"""The doctor: causes of trouble in a training run, found from its numbers alone."""

from grpolab.doctor.causes import Finding
from grpolab.doctor.page import CAUSES, SYMPTOMS, Diagnosis, diagnose, diagnose_log, examine

__all__ = ["CAUSES", "SYMPTOMS", "Diagnosis", "Finding", "diagnose", "diagnose_log", "examine"]
