"""The terminal: messages, progress and interrupts of both programs."""
