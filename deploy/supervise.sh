#!/bin/sh
# Run a command, and again whenever it ends, until this script gets SIGTERM or SIGINT.
#
#     supervise.sh dask worker --scheduler-file cluster.json
#
# A Dask worker that was cut off from its scheduler exits for good, its nanny too, and with exit code 0, so every end is
# followed by another start. Give each worker a supervisor of its own: `dask worker --nworkers 4` ends only when all
# four are gone. With --while-stdin the end of standard input stops it as well: the end of an SSH connection, or of the
# script that started it. With --replace FILE, which comes first, the supervisor whose process number is in the file is
# stopped before anything is started, and the file gets the number of this one.
set -u

delay=${SUPERVISE_DELAY:-2} # seconds before another start
grace=${SUPERVISE_GRACE:-20} # whole seconds a command may take to stop
watch=

say() {
  echo "supervise: $*" >&2
}

stop() {
  trap : TERM INT HUP
  # What was started last: the command, the delay, or nothing but the watch. No variable would do: the signal may come
  # between a start and the line that keeps its process number.
  child=${!:-}
  if [ "$child" != "$watch" ]; then stop_child; fi
  stop_watch
  exit 0
}

# It looks again and again: a clock in the background would have to be stopped too, and dash may lose the signal.
stop_child() {
  looks=$((grace * 10))
  kill -TERM "$child" 2>/dev/null
  while kill -0 "$child" 2>/dev/null; do
    if [ "$looks" -le 0 ]; then kill -KILL "$child"; fi
    looks=$((looks - 1))
    sleep 0.1
  done
}

watch_stdin() {
  trap 'kill -KILL "${!:-}" 2>/dev/null; exit' TERM
  cat <&3 >/dev/null &
  wait "$!"
  kill -TERM "$$"
}

stop_watch() {
  while [ -n "$watch" ] && kill -TERM "$watch" 2>/dev/null; do # a process that has just been started may not heed it
    sleep 0.1
  done
}

# A host learns late that an SSH connection was cut, and two supervisors would run the same worker.
replace() {
  old=$(cat "$1" 2>/dev/null)
  while [ -n "$old" ] && is_supervisor "$old" "$1" && kill -TERM "$old"; do
    sleep 1
  done
  echo "$$" >"$1"
}

is_supervisor() { # the number may be somebody else's by now
  tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -qF "supervise.sh --replace $2 "
}

trap 'watch=${!:-}; stop_watch; exit 0' TERM INT HUP # nothing but the watch can have been started
if [ "${1:-}" = --replace ] && [ $# -gt 1 ]; then
  replace "$2"
  shift 2
fi
if [ "${1:-}" = --while-stdin ]; then
  shift
  exec 3<&0 # a command in the background has no standard input unless it is given one
  watch_stdin &
  watch=$!
  exec 3<&-
fi
if [ $# -eq 0 ]; then
  stop_watch
  echo "usage: supervise.sh [--replace FILE] [--while-stdin] COMMAND [ARGUMENT ...]" >&2
  exit 2
fi

trap stop TERM INT HUP
while :; do
  "$@" </dev/null &
  wait "$!"
  code=$?
  if [ "$code" -eq 126 ] || [ "$code" -eq 127 ]; then
    say "$1 cannot be run, so it is not tried again"
    stop_watch
    exit "$code"
  fi
  say "exit code $code of $1; starting it again in $delay s"
  sleep "$delay" &
  wait "$!"
done
