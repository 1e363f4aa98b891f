"""What other people's programs call: each file is imported by who uses it, no other."""
