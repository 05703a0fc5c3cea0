# Sourced by the scripts beside it: where the repository is, and steps with visible progress.
# On a terminal a step is one line that is redrawn with its seconds; elsewhere it is one line when it
# starts and one when it ends. Its output goes to a log, whose end is shown when it fails.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
logs="$root/build/logs"
step_pid=

on_terminal() { [[ -t 2 && -z ${CI:-} ]]; }

say() { printf '%s\n' "$*" >&2; }

# Ends the step that runs when we are told to end, so that nothing goes on without us.
stop_step() {
  trap - INT TERM HUP
  if [[ -n $step_pid ]]; then
    kill -TERM -- "-$step_pid" 2>/dev/null || kill -TERM "$step_pid" 2>/dev/null || true
    wait "$step_pid" 2>/dev/null || true
  fi
  if on_terminal; then printf "\r\033[K" >&2; fi
  say "stopped"
  exit $((128 + $1))
}
trap 'stop_step 2' INT
trap 'stop_step 15' TERM
trap 'stop_step 1' HUP

# The newest "[12/345]" or "12/345 Test" of a log, for the line that is redrawn.
counter() { tail -c 2000 "$1" 2>/dev/null | grep -aoE '\[?[0-9]+/[0-9]+\]?' | tail -n 1; }

# assertions LOG LINES: the failed assertions that a log tells of, in at most LINES lines.
assertions() {
  {
    grep -aE -A 6 ': Failure$|Sanitizer: ' "$1"
    grep -aE -A 30 '^(FAIL|ERROR): ' "$1"
  } | head -n "$2" | cut -c 1-240 | sed 's/^/    /'
}

# step TITLE LOG COMMAND...: the command's exit code.
step() {
  local title=$1 log="$logs/$2" start=$SECONDS code=0
  shift 2
  mkdir -p "$logs"
  on_terminal || say "$title ..."
  # A session of its own, so that all of it can be ended; with SIGINT as usual, which the shell has
  # its background jobs ignore. sudo stays in ours: it remembers the password for each terminal.
  local session=(setsid env --default-signal=INT,QUIT)
  [[ $1 == sudo ]] && session=()
  "${session[@]}" "$@" >"$log" 2>&1 </dev/null &
  step_pid=$!
  while on_terminal && kill -0 "$step_pid" 2>/dev/null; do
    printf '\r\033[K· %s  %s  %d s' "$title" "$(counter "$log")" $((SECONDS - start)) >&2
    sleep 0.2
  done
  wait "$step_pid" || code=$?
  step_pid=
  if on_terminal; then printf "\r\033[K" >&2; fi
  if [[ $code == 0 ]]; then
    say "ok $title  $((SECONDS - start)) s"
  else
    say "failed: $title  $((SECONDS - start)) s, exit code $code. The end of $log:"
    grep -aE 'error:|CMake Error|FAILED:|\*\*\*' "$log" | head -n 20 | cut -c 1-160 | sed 's/^/    /' >&2
    # The failed assertions, because CI may show only this output and not the log.
    assertions "$log" 160 >&2
    tail -n 20 "$log" | cut -c 1-160 | sed 's/^/    /' >&2
  fi
  return "$code"
}

# As many compilers as cores, and at most one for each 1.5 GiB of memory.
jobs() {
  local memory_kib cores
  memory_kib=$(awk '/MemAvailable/ {print $2}' /proc/meminfo)
  cores=$(nproc)
  local fit=$((memory_kib / 1572864))
  ((fit < 1)) && fit=1
  echo $((cores < fit ? cores : fit))
}

# configure PRESET
configure() {
  step "configure $1" "$1-configure.log" cmake --preset "$1" -S "$root"
}

# build PRESET TARGET...
build() {
  local preset=$1
  shift
  step "build $preset" "$preset-build.log" ninja -C "$root/build/$preset" -j "$(jobs)" "$@"
}
