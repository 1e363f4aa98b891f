"""Whether checkpoints were relearned on other rows, and whether they still could be."""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.audits import about
from spark_audit.names import RELEARN, CheckpointName
from spark_audit.report.checkpoint_states import CheckpointState


def relearned(all_checkpoint_states: Sequence[CheckpointState]) -> bool:
    """Return whether checkpoints were audited again after relearning on other rows."""
    return any(
        CheckpointName.parse(checkpoint_state.name).derived == RELEARN
        for checkpoint_state in all_checkpoint_states
    )


def can_be_relearned(all_checkpoint_states: Sequence[CheckpointState]) -> bool:
    """Return whether relearning is still a step.

    It is none of files of text, of endpoints without weights here, nor twice.
    """
    if all(checkpoint_state.is_of_text for checkpoint_state in all_checkpoint_states):
        return False
    audits = {
        tried.audit
        for checkpoint_state in all_checkpoint_states
        for tried in checkpoint_state.tried
    }
    has_models = any(not about(audit).of_files for audit in audits)
    return has_models and not relearned(all_checkpoint_states)
