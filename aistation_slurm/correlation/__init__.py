"""What many nodes report at once: one cause or many, and when nobody is drained (docs/breaker.md)."""
