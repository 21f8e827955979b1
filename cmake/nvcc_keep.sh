#!/bin/sh
# Runs nvcc with "$@" and keeps beside the object what tests look at: what the assembler says of
# each kernel (OBJECT.ptxas), and the PTX (OBJECT.compute_90.ptx).
object=""
previous=""
for argument in "$@"; do
  [ "$previous" = "-o" ] && object="$argument"
  previous="$argument"
done
# The test of the compiler itself has no object to look at.
[ "${object%.o}" != "$object" ] || exec "$@"
keep="$object.keep"
mkdir -p "$keep" || exit 1
"$@" -Xptxas -v --keep --keep-dir "$keep" 2>"$object.ptxas"
code=$?
grep -v "^ptxas info\|bytes stack frame\|^$" "$object.ptxas" >&2
for ptx in "$keep"/*.ptx; do
  name="${ptx%.ptx}"
  [ -f "$ptx" ] && mv "$ptx" "$object.${name##*.}.ptx"
done
rm -rf "$keep"
exit $code
