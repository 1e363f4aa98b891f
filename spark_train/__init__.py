"""Train the models that are audited: SPARK, its ablations, and its baselines.

``spark-train run --method spark``, in the order to read it:

- ``cli.py``: the flags;
- ``training_run.py``: a run, from data to its folder;
- ``training_methods/spark.py``: SPARK's two phases for each task;
- ``task_phase.py`` and ``distilled_replay.py``: the first phase, which learns a task
  and replays earlier ones;
- ``correction.py``: the second phase, privacy correction;
- ``loop.py``: the steps of a phase;
- ``student.py`` and ``losses.py``: the model, and what is summed over its logits.

From Python, ``run`` and ``stages`` of ``training_calls.py`` take the options of the
command as arguments. Names are resolved at first use, so an import of this package
imports no PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
