#!/bin/bash
#PBS -N xffl-demo-0001-r0002-alba-a1
#PBS -o /scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1/job.out
#PBS -j oe
#PBS -k doe
#PBS -S /bin/bash
#PBS -m n
#PBS -r y
#PBS -A a1
#PBS -q prod
#PBS -l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=480gb
#PBS -l filesystems=home:eagle
#PBS -l place=scatter
#PBS -l walltime=21600
#
# xffl job xffl-demo-0001-r0002-alba-a1, rendered for PBS. `qsub job.sh` by hand submits the same job. Its folder, protocol and files:
# docs/reference/job_json.md and docs/operator/pbs_and_flux.md.
job=${PBS_JOBID:?this script is for qsub}
starts=0 # PBS does not tell a job that it runs again; the heartbeat does
hosts=("$(hostname)")
if [ -r "$PBS_NODEFILE" ]; then mapfile -t hosts < <(awk '!seen[$0]++' "$PBS_NODEFILE"); fi
tmrsh=$(command -v pbs_tmrsh || (. /etc/pbs.conf && echo "$PBS_EXEC/bin/pbs_tmrsh") 2>/dev/null || echo pbs_tmrsh)
on_host() { # on_host HOST COMMAND...: as a task of this job; the warning reaches the ranks of the first host
  trap '' USR1
  exec "$tmrsh" "$@"
}
# The part of a job script that claims the attempt and runs the ranks. Before it: the variables job (the id), starts (restarts
# of the job, if known), hosts (an array, this host first), and the function on_host.
umask 077
folder=/scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1
cd "$folder" || exit 1

already_reported() { :; }
# The part of a job script that claims the attempt. Before it: the variables job (the id) and starts (restarts of the job, if
# known), and the function already_reported.
# The job that creates the claim trains; another job of this attempt exits. A job with the owner's id is a restarted job, whose
# earlier start has ended, or another job with a reused id (a queue manager that lost its state). The earlier start's heartbeat
# tells them apart.
start_id=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
beat=${XFFL_CLAIM_BEAT:-15} # seconds between heartbeats
own_claim() {
  printf '%s %s %s %s\n' "$job" 0123456789abcdef0123456789abcdef "$start_id" "$starts" >claim/owner.part && mv claim/owner.part claim/owner
}
is_alive() { # is_alive START_ID: the heartbeat of that start changes
  local before
  before=$(cat "claim/beat-$1" 2>/dev/null)
  for _ in 1 2 3; do
    sleep "$beat"
    [ "$(cat "claim/beat-$1" 2>/dev/null)" = "$before" ] || return 0
  done
  return 1
}
if mkdir claim 2>/dev/null; then
  own_claim || exit 1
elif [ -e claim/fenced ]; then
  echo "xffl: the coordinator has abandoned this attempt; nothing to do"
  exit 0
elif [ -d claim ]; then
  owner=
  for _ in 1 2 3 4 5; do
    read -r owner _ owner_start_id owner_starts 2>/dev/null <claim/owner && break
    sleep 2 # the owner is written after the claim; a shared file system may show it late
  done
  if [ "$owner" != "$job" ]; then
    echo "xffl: this attempt is already claimed by ${owner:+job }${owner:-an unknown job}; nothing to do"
    exit 0
  fi
  if [ -e out/report.json ] || [ -e stay.taken ]; then # the folder out of a job of several rounds may be removed
    already_reported
    echo "xffl: job $job has already reported"
    exit 0
  fi
  if [ "$starts" -le "${owner_starts:-0}" ] && is_alive "${owner_start_id:-none}"; then
    echo "xffl: another job with the id $job trains here; nothing to do"
    exit 0
  fi
  echo "xffl: job $job starts again (restart $starts); its earlier output is removed"
  own_claim && rm -rf out && mkdir out || exit 1
else
  echo "xffl: cannot create the folder 'claim' in $PWD" >&2
  exit 1
fi
echo "xffl: xffl-demo-0001-r0002-alba-a1 is job $job, restart $starts, on ${hosts[*]}"

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
warn_after=21000
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

if [ ${#hosts[@]} -ne 2 ]; then
  echo "xffl: the job has ${#hosts[@]} hosts (${hosts[*]}), expected 2: the site does not distribute the job as 'nodes' says" >&2
  exit 1
fi

# Checks the input model for a custom trainer: the coordinator lists its files and their SHA-256, and sends damaged files again.
# The list is empty for xffl-train, which checks the model itself.
if [ -s model.sha256 ] && ! command -v sha256sum >/dev/null 2>&1; then
  echo "xffl: sha256sum not found: the input model is not checked" >&2
elif [ -s model.sha256 ]; then
  check_files() {
    if ! command -v xargs >/dev/null 2>&1; then
      sha256sum --check --quiet model.sha256
      return
    fi
    # openssl is faster (it uses the processor's SHA instructions); sha256sum decides where the digests differ.
    xargs -d '\n' -n 1 -P 8 sh -c 'found=$(openssl dgst -sha256 -r "${1#*  }" 2>/dev/null)
      [ "${found%% *}" = "${1%%  *}" ] || printf "%s\n" "$1" | sha256sum --check --quiet' sh <model.sha256
  }
  damaged=$(LC_ALL=C check_files 2>&1) || {
    echo "xffl: the input model is damaged: $damaged" >&2
    case $damaged in
      *FAILED*) printf '%s\n' "$damaged" >out/model.failure.part && mv out/model.failure.part out/model.failure ;;
    esac
    exit 1
  }
fi

# One rank, on its host: rank.sh RANK LOCAL_RANK MASTER_ADDR MASTER_PORT.
cat >rank.sh.part <<'XFFL_RANK'
#!/bin/bash
umask 077
cd /scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1 || exit 1
load_module() {
  local init
  if ! command -v module >/dev/null 2>&1; then
    for init in /etc/profile.d/{lmod,z00_lmod,modules,00-modulepath}.sh "$LMOD_PKG/init/bash" "$MODULESHOME/init/bash" \
      /usr/share/{lmod/lmod,modules}/init/bash; do
      if [ -r "$init" ]; then . "$init"; fi
      if command -v module >/dev/null 2>&1; then break; fi
    done
  fi
  if ! module load "$1"; then
    echo "xffl: cannot load the module $1" >&2
    exit 1
  fi
}
rank=$1 local_rank=$2 address=$3 port=$4
set +eCu # undo options set by `environment`
export RANK=$rank LOCAL_RANK=$local_rank LOCAL_WORLD_SIZE=4 WORLD_SIZE=$((2 * 4))
export MASTER_ADDR=${MASTER_ADDR:-$address} MASTER_PORT=${MASTER_PORT:-$port}
exec xffl-train --job /scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1/job.json --device cuda
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
  for ((local_rank = 0; local_rank < 4; ++local_rank, ++rank)); do
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
