#!/usr/bin/env bash
# Runs targets one after another: fuzz/run.sh [SECONDS [TARGET…]], by default all
# of them, ten minutes each. Stops at the first finding, which libFuzzer writes to
# fuzz/artifacts/.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-600}
targets=("${@:2}")
[ "${#targets[@]}" -gt 0 ] || mapfile -t targets < <(cargo fuzz list)

# No address sanitizer, which only nightly toolchains have; what is fuzzed is what
# is shipped; more units build faster.
build=(-s none --no-cfg-fuzzing --codegen-units 16)
cargo fuzz build "${build[@]}"
for target in "${targets[@]}"; do
  mkdir -p "fuzz/corpus/$target"
  options=(-max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=16384 -print_final_stats=1)
  dictionary="fuzz/dictionaries/$target.dict"
  [ ! -f "$dictionary" ] || options+=(-dict="$dictionary")
  printf '\n== %s (%s)\n' "$target" "$(date +%T)"
  cargo fuzz run "${build[@]}" "$target" "fuzz/corpus/$target" "fuzz/inputs/$target" -- "${options[@]}"
done
