"""The terminal: command lines, output and interrupts of both programs."""
