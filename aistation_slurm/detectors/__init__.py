"""Pure judgement: snapshots (and earlier snapshots) in, findings out. No clock, no file, no subprocess."""
