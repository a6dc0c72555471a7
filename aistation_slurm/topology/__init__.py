"""The network under the nodes: read, check, compare, draw, generate. See ``model.py`` and ``fabric.py``."""
