"""Noise: probabilities of identifiers under noise on the input embeddings."""
