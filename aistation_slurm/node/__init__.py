"""What runs on a compute node: gate, clean-up, agent and the node state file."""
