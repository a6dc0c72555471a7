#!/bin/sh
# Installs PyTorch (CPU build) and safetensors into .venv/torch, for examples/torch_ddp and its test. Not part of `make setup`:
# 200 MB to fetch, 1 GB on the disk, about a minute. Does nothing where it was done already.
#
# A CPU build is taken from the package sources that pip is configured with, else from PyTorch's own index. PyPI's build for
# Linux on x86_64 needs CUDA's libraries (3 GB more) and is installed only when named: TORCH='torch==2.13.0'.
set -eu
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-/usr/bin/python3}
VENV=.venv/torch
CPU_INDEX=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}

say() { printf 'install-torch: %s\n' "$*"; }
die() { printf 'install-torch: %s\n' "$*" >&2; exit 1; }

# the extra `torch` of pyproject.toml, as words
wanted=$(sed -n 's/^torch = \[\(.*\)\]$/\1/p' pyproject.toml | tr -d '",')
[ -n "$wanted" ] || die "pyproject.toml has no line 'torch = [...]' below [project.optional-dependencies]"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || die "$PYTHON is missing or has no venv. Install Python 3.9 or newer with it (Debian: python3-venv)."

mkdir -p .venv
exec 9>.venv/torch.lock
flock 9 # another run may be at it

stamp=$VENV/.installed
state="$wanted ${TORCH:-}"
if [ "$(cat "$stamp" 2>/dev/null)" = "$state" ] && "$VENV/bin/python" -c '' 2>/dev/null; then exit 0; fi

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

newest_cpu_build() { pip index versions torch "$@" 2>/dev/null | tr -d ',' | tr ' ' '\n' | grep '+cpu$' | head -n 1; }

build=${TORCH:-}
if [ -z "$build" ]; then
    version=$(newest_cpu_build)
    if [ -z "$version" ]; then
        say "no CPU build of torch in pip's package sources; asking $CPU_INDEX"
        version=$(newest_cpu_build --retries 1 --timeout 20 --index-url "$CPU_INDEX")
        set -- --extra-index-url "$CPU_INDEX"
    fi
    [ -n "$version" ] || die "no CPU build of torch for $("$PYTHON" --version) in pip's package sources nor at $CPU_INDEX (is it reachable?). Name another index (TORCH_CPU_INDEX=URL) or a build that pip can find (TORCH='torch==2.13.0', with CUDA's libraries 3 GB)."
    build="torch==$version"
fi

say "installing $build into $VENV (about a minute)"
log=$(mktemp)
# shellcheck disable=SC2086  # requirements are words
if ! pip install -q "$@" $wanted "$build" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "pip could not install $build (its last lines are above, all of it is in $log). Check the package index, then run this again."
fi
rm -f "$log"

# pip writes this folder's absolute path into its scripts; the folder may be seen under another one (another host, a container)
cat >"$VENV/bin/torchrun" <<'LAUNCHER'
#!/bin/sh
exec "$(dirname "$0")/python" -m torch.distributed.run "$@"
LAUNCHER
chmod 755 "$VENV/bin/torchrun"
"$VENV/bin/python" -c 'import torch.distributed, safetensors' || die "torch is installed in $VENV but cannot be imported (see above)"
printf '%s\n' "$state" >"$stamp"
