"""SPARK training: fine-tuning whose checkpoints SPARK Audit is tried on."""
