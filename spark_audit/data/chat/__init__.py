"""Chat data: formats, chat templates, and what a training run had loss on."""
