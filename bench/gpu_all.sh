#!/bin/bash
# Every table of the GPU in turn: bench/gpu_all.sh DIR OUT [quick]
#
# DIR is a folder on the storage to measure (about 60 GiB are needed; quick: 9). What was measured goes to OUT, and is
# kept after every command: gpu.md (the tables), gpu.json (everything, for bench/publish.py --keep), gpu.log (what went on).
# Builds nothing and fetches nothing; peers that aren't installed are left out and named. PYTHON names the interpreter.
# ONLY='warm cold' runs just those; ROUNDS (5) and LIMIT_S (170, of each command) may be set likewise.
# KvikIO reads by POSIX (KVIKIO_COMPAT_MODE=ON) unless told otherwise: through cuFile's own compatibility mode it is many
# times slower. On a machine where cuFile goes direct, say KVIKIO_COMPAT_MODE=OFF.
# quick is a trial of everything in a minute; its figures are worth nothing.
# Ends with 1 if something that had to hold did not, with 3 without a GPU.
set -u
[ $# -ge 2 ] || { sed -n '2,3p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
dir=$1 out=$2 worst=0
export KVIKIO_COMPAT_MODE=${KVIKIO_COMPAT_MODE:-ON}
mkdir -p "$dir" "$out/now"

common=(--dir "$dir" --rounds "${ROUNDS:-5}") small=() model=() limit=${LIMIT_S:-170}
if [ "${3:-}" = quick ]; then
  common=(--dir "$dir" --rounds 1 --seconds 0.3 --scan-seconds 0.2 --no-scan)
  small=(--files 2000) model=(--file-gib 2) limit=60
fi

measure() {
  local name=$1 began=$SECONDS code script=$here/gpu_$1.py
  [ -e "$script" ] || script=$here/$1
  local shown
  shown=$(basename "$script" .py)
  shift
  [[ " ${ONLY:-$name} " == *" $name "* ]] || return 0
  timeout -k 10 "$limit" "${PYTHON:-python3}" "$script" "${common[@]}" --json "$out/now/$name.json" "$@" \
    > "$out/now/$name.md" 2>> "$out/gpu.log"
  code=$?
  cat "$out/now/$name.md" >> "$out/gpu.md"
  [ ! -e "$out/now/$name.json" ] || cat "$out/now/$name.json" >> "$out/gpu.json"
  rm -f "$out/now/$name".*
  case $code in
    0) ;;
    4) echo "$shown: time ran out; what it had measured is kept" ;;
    1) echo "$shown: something does not hold; see its table" ;;
    124 | 137) echo "$shown: stopped after $limit s; what it had measured is kept" ;;
    *) echo "$shown: ended with $code: $(tail -n 1 "$out/gpu.log")" ;;
  esac
  [ $code -le $worst ] || worst=$code
  echo "$shown: $((SECONDS - began)) s" | tee -a "$out/gpu.log"
  # Without a GPU, none of the others can measure either.
  ! tail -n 2 "$out/gpu.log" | grep -qE 'no NVIDIA GPU|is a sandbox' || exit 3
}

: > "$out/gpu.md"; : > "$out/gpu.json"; : > "$out/gpu.log"
measure warm "${model[@]}"
measure random "${model[@]}"
# Its own time limit is nearer, so that it ends with a table of what it has.
rm -f "$out/rows.jsonl"
measure rows.py "${model[@]}" --lines "$out/rows.jsonl" --limit-s "$((limit - 40))"
measure emulate "${model[@]}"
measure safetensors "${model[@]}"
measure small_files --keep "${small[@]}"
measure verify
measure cold "${model[@]}"
measure auto "${model[@]}"
measure two "${model[@]}"
measure cufile --make-udev "${model[@]}"
measure gdsio "${model[@]}"
# Training and inference: a round each, since a round of them is long.
common=(--dir "$dir" --rounds "${TRAIN_ROUNDS:-1}") limit=${TRAIN_LIMIT_S:-600}
if [ "${3:-}" = quick ]; then
  common+=(--seconds 1) limit=240
fi
measure feed.py --gpu
measure train.py --gpu
measure train_models.py
measure gnn.py
measure drives.py --gpu
measure infer.py --gpu
rmdir "$out/now" 2> /dev/null
cat "$out/gpu.md"
exit $worst
