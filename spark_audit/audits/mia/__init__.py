"""Whether scores tell the rows that were trained on from rows that were not."""
