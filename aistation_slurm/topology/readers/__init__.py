"""One file for each source of a topology. Each takes text and raises TopologyError, nothing else, for text it cannot use."""
