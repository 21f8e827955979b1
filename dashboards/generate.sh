#!/usr/bin/env bash
# Makes dashboards and rules from dashboards/source.
#   generate.sh [FOLDER]    writes FOLDER/grafana and FOLDER/prometheus; default: this script's folder
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${1:-$here}"
for program in jsonnet python3; do
  command -v "$program" >/dev/null || { echo "generate.sh: $program is not installed" >&2; exit 1; }
done
mkdir -p "$out/grafana" "$out/prometheus"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
jsonnet -m "$work" "$here/source/dashboards.jsonnet" >/dev/null
for file in "$work"/*.json; do
  # Implementations of Jsonnet differ in indentation and in how they write fractions.
  python3 -m json.tool --indent 2 --no-ensure-ascii "$file" "$out/grafana/$(basename "$file")"
done
jsonnet -S -m "$out/prometheus" "$here/source/rules.jsonnet" >/dev/null
