"""Audits: the classes that conclude from the scores of checkpoints.

``__init__.pyi`` lists them, and :class:`~spark_audit.audits.base.Audit` is their base
class. Other packages add audits by the entry point ``spark_audit.audits``. An audit is
imported when it is first used.

Examples
--------
>>> sa.audits.Matched(replicates=500).name
'matched'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
