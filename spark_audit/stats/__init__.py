"""Statistics of the audits: pure numpy and SciPy, no model, no file.

``sa.stats.<function>`` are the public functions of this folder's files, as
``__init__.pyi`` lists them; each is imported when it is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
