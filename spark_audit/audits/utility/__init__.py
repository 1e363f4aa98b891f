"""What the tasks' accuracy is after every stage: Last, Avg, BWT, forgetting."""

from spark_audit.audits.utility import task_accuracy as task_accuracy
