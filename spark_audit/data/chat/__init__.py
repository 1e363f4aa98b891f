"""Chat data: formats, chat templates, and which tokens a training run had loss on."""
