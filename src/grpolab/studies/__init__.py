"""Train a run or a study look by look, register it, draw it. The layer above `sweep` and `report`."""
