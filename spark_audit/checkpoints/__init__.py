"""From a path to an open model, or a refusal that says why.

A checkpoint goes through these files, in this order:

==============================  ==================================================
``specs.py``, ``typed_paths``   what is written on a command line: ``NAME=PATH@K``
``detect.py``                   **which format a path is of**; a new one is added here
``formats/``                    a file for each format: headers ->
                                ``StoredCheckpoint``
``adapter_config.py``           **which types of PEFT's adapters are opened**; a new one
                                is added here, its fields in ``adapter_fields.py``
``stored_checkpoint.py``        ``StoredCheckpoint``: full weights or an adapter,
                                not loaded
``call_headers.py``             the checkpoints of one call, each on its base
``architecture.py``             which class of transformers computes it
``adapters.py``                 ``AdapterHost``: a module, and adapters switched on it
``tokenizer_choice.py``         whose tokenizer reads its texts
``open.py``                     the whole way; loads one module at a time
``in_memory.py``, ``given.py``  models in memory, and what Python code may give
``checkpoint.py``               ``Checkpoint``: a checkpoint that can be scored
==============================  ==================================================

Nothing of a file runs, and nothing is fetched that was not asked for: see
``untrusted.py``. ``inspection.py`` goes the same way, and scores nothing.
"""
