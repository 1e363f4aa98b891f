"""Whether scores tell the rows that were trained on from rows that were not."""

from spark_audit.audits.mia import membership as membership
