"""tables/*.tex: the report as booktabs tables in the layouts of the SPARK paper."""
