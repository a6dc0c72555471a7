"""One reader per training framework; inspect and choose. Runs as the user, never unpickles."""
