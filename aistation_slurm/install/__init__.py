"""``aistation install``: units, timers, tmpfiles, cron, logrotate, wrappers and snippets; never slurm.conf itself."""
