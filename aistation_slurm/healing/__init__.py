"""Self-healing, opt-in: reset, restart or reboot an empty node of our own drain, verify, give it back or ask for a person."""
