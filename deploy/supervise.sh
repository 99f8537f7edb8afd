#!/bin/sh
# Run a command, and again whenever it ends, until this script gets SIGTERM or SIGINT.
#
#     supervise.sh dask worker --scheduler-file cluster.json
#
# A Dask worker that was cut off from its scheduler exits for good, its nanny too, and with exit code 0, so every end is
# followed by another start. Give each worker a supervisor of its own: `dask worker --nworkers 4` ends only when all
# four are gone. With --while-stdin the end of standard input stops it as well: the end of an SSH connection, or of the
# script that started it.
set -u

delay=${SUPERVISE_DELAY:-2} # seconds before another start
grace=${SUPERVISE_GRACE:-20} # seconds a command may take to stop
watch=

say() {
  echo "supervise: $*" >&2
}

stop() {
  trap : TERM INT HUP
  # What was started last: the command, the delay, or nothing but the watch. No variable would do: the signal may come
  # between a start and the line that keeps its process number.
  child=${!:-}
  [ -z "$watch" ] || kill "$watch" 2>/dev/null
  if [ -n "$child" ] && kill -TERM "$child" 2>/dev/null; then
    kill_later &
    killer=$!
    while kill -0 "$child" 2>/dev/null; do # a second signal ends the wait too early
      wait "$child"
    done
    kill "$killer" 2>/dev/null
  fi
  exit 0
}

kill_later() {
  sleep "$grace" &
  trap 'kill "$!"; exit' TERM
  wait "$!"
  kill -KILL "$child"
}

if [ "${1:-}" = --while-stdin ]; then
  shift
  exec 3<&0 # a command in the background has no standard input unless it is given one
  (
    cat <&3 >/dev/null
    kill -TERM "$$"
  ) &
  watch=$!
  exec 3<&-
fi
if [ $# -eq 0 ]; then
  echo "usage: supervise.sh [--while-stdin] COMMAND [ARGUMENT ...]" >&2
  exit 2
fi

trap stop TERM INT HUP
while :; do
  "$@" </dev/null &
  wait "$!"
  code=$?
  if [ "$code" -eq 126 ] || [ "$code" -eq 127 ]; then
    say "$1 cannot be run, so it is not tried again"
    [ -z "$watch" ] || kill "$watch" 2>/dev/null
    exit "$code"
  fi
  say "exit code $code of $1; starting it again in $delay s"
  sleep "$delay" &
  wait "$!"
done
