"""The doctor finds the causes of trouble in a training run, from the run's numbers alone."""

from grpolab.doctor.causes import Finding
from grpolab.doctor.page import CAUSES, SYMPTOMS, Diagnosis, examine

__all__ = ["CAUSES", "SYMPTOMS", "Diagnosis", "Finding", "examine"]
