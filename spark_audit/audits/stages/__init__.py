"""When what was remembered and when forgotten, by stage and task of a series."""

from spark_audit.audits.stages import stage_memory as stage_memory
