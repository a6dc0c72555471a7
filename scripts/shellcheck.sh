#!/bin/sh
# Runs shellcheck over every POSIX sh file of the project, found by its first line.
set -eu
cd "$(dirname "$0")/.."
git ls-files | while IFS= read -r file; do
    [ -f "$file" ] || continue
    case $(head -n 1 "$file" | tr -d '\0') in
    '#!/bin/sh'*) printf '%s\n' "$file" ;;
    esac
done | xargs -r shellcheck
