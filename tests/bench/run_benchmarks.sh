#!/usr/bin/env bash
# Runs every benchmark of a build, one after the other, so that they do not disturb each other.
# Arguments after the build folder go to each benchmark, for example --benchmark_filter=Plan.
set -euo pipefail
BUILD="$1"
shift
mkdir -p build/bench
found=0
for benchmark in "$BUILD"/bench/*; do
  [ -x "$benchmark" ] && [ -f "$benchmark" ] || continue
  found=1
  name="$(basename "$benchmark")"
  printf '\n== %s\n' "$name"
  "$benchmark" --benchmark_out="build/bench/$name.json" --benchmark_out_format=json "$@"
done
[ "$found" = 1 ] || { echo "bench: no benchmark in $BUILD/bench" >&2; exit 1; }
printf '\nbench: full numbers in build/bench/*.json\n'
