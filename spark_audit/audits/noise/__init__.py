"""How Gaussian noise on input embeddings changes the probability of identifiers."""

from spark_audit.audits.noise import embedding_noise as embedding_noise
