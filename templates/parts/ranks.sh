# The part of a job script that claims the attempt and runs the ranks. Before it: the variables job (the id), starts (restarts
# of the job, if known), hosts (an array, this host first), and the function on_host.
umask 077
folder={{quote folder}}
cd "$folder" || exit 1

already_reported() { :; }
{{include claim}}
echo "xffl: {{job_name}} is job $job, restart $starts, on ${hosts[*]}"

# SIGUSR1 to this script: the trainer stops after its current step and saves its work.
interrupted=
warned=
steps=()
warn() {
  interrupted=1
  warned=1
  if [ ${#steps[@]} -gt 0 ]; then kill -USR1 "${steps[@]}" 2>/dev/null; fi
}
trap warn USR1

# The heartbeat of this start. It also warns this script before the walltime. No child of this shell, whose children are ranks.
warn_after={{warn_after}}
began=$(date +%s)
heartbeat=$(
  while kill -0 "$$"; do # a failed write, as on a full disk, ends neither the heartbeat nor the warning
    printf '%(%s)T\n' -1 >"claim/beat-$start_id"
    if [ "$warn_after" -gt 0 ] && [ $(($(date +%s) - began)) -ge "$warn_after" ]; then
      kill -USR1 "$$"
      warn_after=0
    fi
    sleep "$beat"
  done </dev/null >/dev/null 2>&1 &
  echo $!
)
# One line per moment of this start, for the account of node-hours (docs/reference/job_json.md). A failed write costs nothing.
stamp() { { printf '%s %(%s)T%s\n' "$1" -1 "${2:+ $2}" >>claim/times; } 2>/dev/null || :; }
stamp start "job=$job restart=$starts nodes=${#hosts[@]} beat=$start_id"
trap 'kill "$heartbeat" 2>/dev/null; stamp end' EXIT

if [ ${#hosts[@]} -ne {{nodes}} ]; then
  echo "xffl: the job has ${#hosts[@]} hosts (${hosts[*]}), expected {{nodes}}: the site does not distribute the job as 'nodes' says" >&2
  exit 1
fi

{{include check_model}}

# One rank, on its host: rank.sh RANK LOCAL_RANK MASTER_ADDR MASTER_PORT.
cat >rank.sh.part <<'XFFL_RANK'
#!/bin/bash
umask 077
cd {{quote folder}} || exit 1
{{include load_module}}
rank=$1 local_rank=$2 address=$3 port=$4
{{lines modules}}
{{lines environment}}
set +eCu # undo options set by `environment`
export RANK=$rank LOCAL_RANK=$local_rank LOCAL_WORLD_SIZE={{tasks_per_node}} WORLD_SIZE=$(({{nodes}} * {{tasks_per_node}}))
export MASTER_ADDR=${MASTER_ADDR:-$address} MASTER_PORT=${MASTER_PORT:-$port}
exec {{words launch}}
XFFL_RANK
mv rank.sh.part rank.sh || exit 1

if [ -n "$warned" ]; then
  echo "xffl: the walltime ends before the training can start" >&2
  exit 1
fi
number=${job//[!0-9]/} # ids such as 12.server
port=$((15000 + (10#${number:0:15} * 16 + starts % 16) % 17000))
stamp train
rank=0
for host in "${hosts[@]}"; do
  for ((local_rank = 0; local_rank < {{tasks_per_node}}; ++local_rank, ++rank)); do
    if [ "$host" = "${hosts[0]}" ]; then
      bash rank.sh "$rank" "$local_rank" "${hosts[0]}" "$port" </dev/null &
    else
      on_host "$host" bash "$folder/rank.sh" "$rank" "$local_rank" "${hosts[0]}" "$port" </dev/null &
    fi
    steps+=($!)
  done
done
# A warning between the last look and the last rank. A shell between fork and exec loses a signal: hence twice.
if [ -n "$warned" ]; then
  kill -USR1 "${steps[@]}" 2>/dev/null
  sleep 1
  kill -USR1 "${steps[@]}" 2>/dev/null
fi

# A rank that fails ends the others. A signal to this script ends `wait`, but no rank.
status=0
left=${#steps[@]}
while [ "$left" -gt 0 ]; do
  interrupted=
  wait -n
  code=$?
  if [ -n "$interrupted" ] && [ "$code" -gt 128 ]; then continue; fi
  if [ "$code" -eq 127 ] && [ -z "$(jobs -pr)" ]; then left=1; fi
  left=$((left - 1))
  if [ "$code" -ne 0 ] && [ "$status" -eq 0 ]; then
    status=$code
    kill "${steps[@]}" 2>/dev/null
  fi
done
echo "xffl: the trainer ended with $status"
stamp trained "$status"
exit "$status"
