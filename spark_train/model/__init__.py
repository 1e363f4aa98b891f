"""The model in training: a causal LM with LoRA adapters."""
