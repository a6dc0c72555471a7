"""The errors that AIStation raises on purpose.

AistationError                 base: a message for a person, in one sentence, that says what, where and what to do
├── ConfigError                aistation.toml cannot be used (names the file, the line and the allowed keys)
├── InstallError               a file cannot be installed, or AIStation's own files are not there
├── ProbeError                 a fact could not be read (never by itself a reason to drain)
├── SlurmError                 Slurm could not be asked or refused
│   ├── SlurmUnavailable       no slurm.conf, no command, or the controller did not answer in time
│   └── SlurmRefused           the controller answered and said no (unknown job, invalid node name, ...)
├── StateFileError             the node state file is missing, cut short, of another boot or of another format
├── CheckpointError            a checkpoint directory cannot be read or used
├── JournalError               the recovery journal cannot be opened or written
│   └── JournalLost            its file was removed or replaced while it was in use
└── TopologyError              a topology file is wrong (names the file and the line)
"""

from __future__ import annotations

__all__ = [
    "AistationError",
    "CheckpointError",
    "ConfigError",
    "InstallError",
    "JournalError",
    "JournalLost",
    "ProbeError",
    "SlurmError",
    "SlurmRefused",
    "SlurmUnavailable",
    "StateFileError",
    "TopologyError",
]


class AistationError(Exception):
    """Base of every error that AIStation raises on purpose; ``str()`` is fit to be shown to a person."""


class ConfigError(AistationError):
    """aistation.toml cannot be used."""


class InstallError(AistationError):
    """A file cannot be installed, or AIStation's own files are not beside the package."""


class ProbeError(AistationError):
    """A fact could not be read. Means "could not look", which is never by itself a sick node."""


class SlurmError(AistationError):
    """Slurm could not be asked, or refused."""


class SlurmUnavailable(SlurmError):
    """No slurm.conf, no command, or no answer from the controller in time. Says nothing about jobs or nodes."""


class SlurmRefused(SlurmError):
    """The controller answered and refused; ``str()`` carries its own words."""


class StateFileError(AistationError):
    """The node state file is missing, cut short, of another boot or of another format."""


class CheckpointError(AistationError):
    """A checkpoint directory cannot be read or used."""


class JournalError(AistationError):
    """The recovery journal cannot be opened or written."""


class JournalLost(JournalError):
    """The journal's file was removed or replaced while in use: only a new start can go on."""


class TopologyError(AistationError):
    """A topology file is wrong."""
