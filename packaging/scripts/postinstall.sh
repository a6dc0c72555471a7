#!/bin/sh
# After the files of the package are in place. Builds the SPANK plugin where Slurm's development files are; starts nothing, and
# never fails: a package that is half installed helps nobody.
cd /opt/aistation/slurm_plugins || exit 0
# of another release of Slurm, perhaps
if [ -e /usr/include/slurm/spank.h ] && command -v make >/dev/null 2>&1 && command -v cc >/dev/null 2>&1; then
    make --no-print-directory clean all ||
        echo 'aistation: the SPANK plugin could not be built; see above, then: make -C /opt/aistation/slurm_plugins' >&2
elif [ ! -e spank_aistation.so ]; then
    echo 'aistation: no SPANK plugin yet, so sbatch knows no --ais options on this host. It has to be built for the Slurm release'
    echo '  of the site: on a host with its development files (Debian: libslurm-dev, RPM: slurm-devel), gcc and make, run'
    echo '  make -C /opt/aistation/slurm_plugins, and copy spank_aistation.so to the same place on the others.'
fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
echo 'aistation: next: aistation install --role node (or controller, submit), then aistation doctor'
exit 0
