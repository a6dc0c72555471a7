"""Many nodes at once: ask them, gather what they say, drain and give back by the nodes' own rules (docs/sweep.md)."""
