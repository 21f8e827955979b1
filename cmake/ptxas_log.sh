#!/bin/sh
# Runs nvcc with "$@" and keeps what the assembler says of each kernel beside the object, for the
# tests that look at registers and spills.
object=""
previous=""
for argument in "$@"; do
  [ "$previous" = "-o" ] && object="$argument"
  previous="$argument"
done
"$@" -Xptxas -v 2>"$object.ptxas"
code=$?
grep -v "^ptxas info\|bytes stack frame\|^$" "$object.ptxas" >&2
exit $code
