#!/bin/sh
# Before the files go. deb calls it with "remove" or "upgrade", rpm with the number of versions that stay.
case ${1-} in upgrade | 1) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
    systemctl disable --now aistation-agent.service aistation-watchdog.service aistation-check.timer aistation-sweep.timer 2>/dev/null
fi
rm -f /opt/aistation/slurm_plugins/spank_aistation.so
find /opt/aistation -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null
exit 0
