"""Run audits: from checkpoints and a manifest to a report folder."""
