#!/bin/sh
# Builds docs/ as a site with mkdocs, strict: a link that leads nowhere fails. Installs mkdocs into .venv where it is missing.
set -eu
cd "$(dirname "$0")/.."
.venv/bin/python -c 'import mkdocs' 2>/dev/null || .venv/bin/pip install --quiet 'mkdocs>=1.6,<2' || {
    echo 'docs: mkdocs cannot be installed here; tests/docs still checks every link' >&2
    exit 1
}
exec .venv/bin/python -m mkdocs build --quiet --strict --site-dir build/docs
