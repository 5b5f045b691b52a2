"""A run or a study from request to page, a file for each command. The layer above `sweep` and `report`."""
