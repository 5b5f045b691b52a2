"""What a command does with a study: train it look by look, register it, draw it. Above `sweep` and `report`."""
