"""Disclosure: the parts of a report that may be shared, and their form.

``report.json`` holds every figure exactly and is for its owner alone. Every other file
is written from :func:`spark_audit.report.disclosure.shared.disclosed`.

==================  ====================================================================
File                What it decides
==================  ====================================================================
``shared``          Puts the shared report together; begin to read here.
``withholding``     Which figures are withheld, and why.
``figure_place``    When two figures are of the same thing, or of a whole and its part.
``rounding``        How finely a figure is shown that is not withheld.
``rows``            The columns of a row, rounded or emptied.
``findings``        The figures and facts of findings and guards.
``tables``          The further tables.
``digests``         The digest of the manifest, with the report's key.
``paths``           Commands, sources and settings, without folders and seeds.
==================  ====================================================================
"""
