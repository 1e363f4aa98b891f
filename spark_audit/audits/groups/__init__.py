"""Figures by group of rows, such as by language or by task (``--by``).

Audits that take the option share these files. A *field* names the groups, and its value
in a row is the row's *group*.

==================  ====================================================================
File                What stands there
==================  ====================================================================
``field``           The option, the values of a field, and the names that groups get.
``column``          The groups of units, as a column of the evidence.
``merging``         Which groups are shown, and which are too small to be.
``worst``           The finding on the group that leaks most, with its correction.
``answers``         What the first screen says of groups.
==================  ====================================================================
"""
