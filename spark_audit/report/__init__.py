"""Reports: what audits found, as files for people and programs."""
