"""How Gaussian noise on input embeddings changes the probability of identifiers."""
