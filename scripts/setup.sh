#!/bin/sh
# Installs what the project needs on a Debian or Ubuntu machine, as root: Slurm, munge, a compiler, Lua 5.1 and the
# virtual environment .venv. Does nothing where everything is there already. Called by `make setup`.
set -eu
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-/usr/bin/python3}
VENV=.venv
LOOK=${SETUP_LOOK_BELOW:-} # tests let this name an empty folder: a machine that has nothing

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# command or file that proves it : package that brings it
NEEDS='
/usr/sbin/slurmctld:slurmctld
/usr/sbin/slurmd:slurmd
/usr/bin/squeue:slurm-client
/usr/bin/sbatch:slurm-client
/usr/sbin/munged:munge
/usr/include/slurm/spank.h:libslurm-dev
/usr/bin/cc:gcc
/usr/bin/make:make
/usr/include/stdio.h:libc6-dev
/usr/bin/lua5.1:lua5.1
/usr/bin/nsenter:util-linux
/usr/bin/unshare:util-linux
/usr/bin/shellcheck:shellcheck
/usr/bin/python3:python3
'

missing=''
for need in $NEEDS; do
    file=${need%%:*} package=${need##*:}
    [ -e "$LOOK$file" ] || missing="$missing $package"
done
[ -e "$LOOK/usr/sbin/ip" ] || [ -e "$LOOK/sbin/ip" ] || [ -e "$LOOK/usr/bin/ip" ] || missing="$missing iproute2"
# squeue --json needs the serializer and openapi plugins, which Debian ships apart from the commands
ls "$LOOK"/usr/lib/*/slurm-wlm/serializer_json.so >/dev/null 2>&1 || missing="$missing slurm-wlm-basic-plugins"
"$PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"

if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || die "not root, and these packages are missing:$missing. Run this as root, or have them installed first."
    command -v apt-get >/dev/null 2>&1 ||
        die "this machine has no apt-get (not Debian or Ubuntu), and these are missing:$missing. Install Slurm (22.05 or newer), munge, a C compiler, Lua 5.1 and python3-venv with your package tool, then run this again."
    say "installing with apt-get:$missing"
    # The packages' own services are not wanted: the test cluster starts its own daemons in namespaces of its own.
    # policy-rc.d is Debian's way to say so; a file that is there already is left alone.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT INT TERM
    fi
    log=$(mktemp)
    # shellcheck disable=SC2086  # a list of package names, split on purpose
    if ! { DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "apt-get failed (its last lines are above, all of it is in $log). Check the package sources, then run this again."
    fi
    rm -f "$log"
fi

[ -x "$PYTHON" ] || die "$PYTHON is missing. Install Python 3.9 or newer."
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || die "$PYTHON is older than Python 3.9. Name a newer one: make setup PYTHON=/usr/bin/python3.11"

stamp=$VENV/.installed
wanted=$(cksum <pyproject.toml)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || ! "$VENV/bin/python" -c '' 2>/dev/null; then
    say "making the virtual environment $VENV (about a minute)"
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    log=$(mktemp)
    if ! "$VENV/bin/pip" install -q --disable-pip-version-check -e '.[dev]' >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "pip could not install the Python packages (its last lines are above). Check the package index, then run this again."
    fi
    rm -f "$log"
    # byte code beforehand: the prolog runs as root with -I and should find it made
    "$VENV/bin/python" -m compileall -q aistation_slurm
    printf '%s\n' "$wanted" >"$stamp"
fi
