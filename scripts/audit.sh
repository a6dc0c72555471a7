#!/bin/sh
# Known vulnerabilities of what the product depends on at run time, by pip-audit. Exit 1: one was found. Where pip-audit cannot be
# installed, or its database cannot be asked (no network), it says so and exits 0: that is no finding.
set -eu
cd "$(dirname "$0")/.."
.venv/bin/python -c 'import pip_audit' 2>/dev/null || .venv/bin/pip install --quiet 'pip-audit>=2.7' 2>/dev/null || {
    echo 'audit: not done: pip-audit cannot be installed here' >&2
    exit 0
}
wanted=$(mktemp) said=$(mktemp)
trap 'rm -f "$wanted" "$said"' EXIT
.venv/bin/python -c 'import msgspec; print("\n".join(msgspec.toml.decode(open("pyproject.toml", "rb").read())["project"]["dependencies"]))' >"$wanted"
code=0
timeout 300 .venv/bin/python -m pip_audit --progress-spinner off --requirement "$wanted" >"$said" 2>&1 || code=$?
cat "$said"
if [ "$code" = 0 ]; then
    ! grep -q 'could not be audited' "$said" || echo 'audit: not done in full: the packages above are not known to the database that was asked' >&2
    exit 0
fi
# a finding is a table with this head; anything else is a failure to ask
if grep -q '^Name .*Fix Versions' "$said"; then exit 1; fi
echo 'audit: not done: the database could not be asked (see above)' >&2
exit 0
