#!/usr/bin/env bash
# The committed dashboards and rules are what their sources give.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
made="$(mktemp -d)"
trap 'rm -rf "$made"' EXIT
dashboards/generate.sh "$made"
status=0
for file in "$made"/grafana/* "$made"/prometheus/*; do
  diff -u "dashboards/${file#"$made"/}" "$file" || status=1
done
# One whose source is gone would stay for ever.
diff <(ls dashboards/grafana) <(ls "$made/grafana") || status=1
[ "$status" = 0 ] || echo "not what the sources give; run dashboards/generate.sh" >&2
exit "$status"
