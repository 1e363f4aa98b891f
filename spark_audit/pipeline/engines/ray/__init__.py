"""Ray: actors on the nodes of a cluster score units; what they find comes back."""
