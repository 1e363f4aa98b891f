#!/usr/bin/env bash
# side_by_side.sh BEFORE NOW FOLDER [ROUNDS]: time the commands that people wait for, of
# two versions in turns. BEFORE and NOW are the paths of their `spark-audit`; FOLDER must
# not exist. A line has: what was timed, which version, the round, seconds on the clock,
# and seconds of the processor with all processes that the command starts.
set -euo pipefail

declare -A command=([before]=$(realpath "$1") [now]=$(realpath "$2"))
mkdir "$3"
cd "$3"
rounds=${4:-1}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

timed() { # what, version, round, arguments of spark-audit...
  local TIMEFORMAT='%R %U %S' seconds
  seconds=$({ time "${command[$2]}" "${@:4}" >"$1-$2-$3.log" 2>&1; } 2>&1) || {
    cat "$1-$2-$3.log" >&2
    exit 1
  }
  awk -v what="$1" -v version="$2" -v round="$3" \
    '{printf "%-9s %-7s %d %9.1f %9.1f\n", what, version, round, $1, $2 + $3}' <<<"$seconds"
}

printf '%-9s %-7s %s %9s %9s\n' what version n clock processor
for round in $(seq "$rounds"); do
  for version in before now; do
    timed demo "$version" "$round" demo -o "demo-$version-$round"
  done

  # From here on one thread and one process: processor seconds hardly depend on others.
  for version in before now; do
    demo=demo-$version-$round
    runs=$demo/runs
    given=(--base "$runs/base" --manifest "$demo/manifest/demo.json")
    audited=("$runs/er" "$runs/sd-replay" "$runs/spark" "$runs/spark-no-ul" "$runs/er-full")
    all=(all --ckpt "${audited[@]}" "${given[@]}" --baseline sd-replay --also noise
      --scores "$demo" -o "concluded-$version-$round" --jobs 1)
    OMP_NUM_THREADS=1 timed conclude "$version" "$round" "${all[@]}"
    OMP_NUM_THREADS=1 timed again "$version" "$round" "${all[@]}"

    # The base's scores are there, and those of one adapter are added to them.
    base=base-$version-$round
    OMP_NUM_THREADS=1 timed base "$version" "$round" matched --ckpt "base=$runs/base" \
      --manifest "$demo/manifest/demo.json" -o "$base" --jobs 1
    OMP_NUM_THREADS=1 timed matched "$version" "$round" matched --ckpt "$runs/er-full" \
      "${given[@]}" --scores "$base" -o "matched-$version-$round" --jobs 1
  done
done
