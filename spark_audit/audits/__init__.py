"""Audits: what a checkpoint's scores say, each a class, as ``__init__.pyi`` lists them.

:class:`~spark_audit.audits.base.Audit` says what each of them must give. Other packages
add theirs by the entry point ``spark_audit.audits``. Each is imported when it is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
