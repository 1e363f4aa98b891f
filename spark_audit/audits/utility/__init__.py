"""What the tasks' accuracy is after every stage: Last, Avg, BWT, forgetting."""
