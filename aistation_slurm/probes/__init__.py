"""Read the facts of a node into immutable snapshots.

The only code that touches NVML, sysfs, procfs and the kernel log.
"""
