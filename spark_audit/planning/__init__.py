"""What an audit could show of a training on the rows of a manifest."""
