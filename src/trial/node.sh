# A rank of the job of `xffl doctor --job`: the first rank of each node writes the node's facts, with the shell, coreutils and getconf
# only; then each rank becomes the trainer. Arguments: the trainer's command. The folder has paths.txt, one path a line: the work folder, the
# data, then the site's libraries.
#
# A probe that does not end (a hung mount, a wedged GPU driver) is named, and ends the job instead of hanging it.
umask 077
rank=${RANK:-${SLURM_PROCID:-0}}
local_rank=${LOCAL_RANK:-${SLURM_LOCALID:-0}}
probes=out/node-$rank.d

probe() { # probe NAME COMMAND...: its output is the file NAME once it has ended
  name=$1
  shift
  names="$names $name"
  (
    "$@" >"$probes/$name.part"
    mv "$probes/$name.part" "$probes/$name"
  ) >/dev/null 2>&1 </dev/null &
  pids="$pids $name=$!"
}

system_facts() {
  echo "host $(uname -n)"
  echo "arch $(uname -m)"
  getconf GNU_LIBC_VERSION || /usr/bin/getconf GNU_LIBC_VERSION # "glibc 2.31"
  echo "cpus $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" # nproc obeys these variables
  while read -r key value _; do
    case $key in
      MemTotal:) echo "memory $value" ;;
      MemAvailable:) echo "available $value" ;;
    esac
  done </proc/meminfo
}

# Prints the driver's version: the first argument that looks like one.
version_in() {
  for word; do
    case $word in *[!0-9.]*) ;; [0-9]*.*) echo "driver $word" && return ;; esac
  done
}

# For tests XFFL_DRIVER_VERSION_FILE names another file, as for xffl-train, and XFFL_AMD_ROOT the folder of AMD's /dev and /sys.
driver_facts() {
  if [ -e "$XFFL_AMD_ROOT/dev/kfd" ]; then
    echo "amd_driver amdgpu $(cat "$XFFL_AMD_ROOT/sys/module/amdgpu/version")" # amdgpu of Linux itself has no version
  fi
  if ! command -v nvidia-smi; then
    while read -r key line; do
      if [ "$key" = NVRM ]; then version_in $line; fi
    done <"${XFFL_DRIVER_VERSION_FILE:-/proc/driver/nvidia/version}"
    return
  fi
  version_in $(nvidia-smi --query-gpu=driver_version --format=csv,noheader)
  nvidia-smi -L | (
    count=0
    while read -r word _; do [ "$word" != GPU ] || count=$((count + 1)); done
    echo "gpus $count"
  )
}

# High-speed networks with the sum of their ports' rates in Gb/s: InfiniBand and RoCE, Slingshot.
fabric_facts() {
  for device in /sys/class/infiniband/*; do
    [ -e "$device" ] || continue
    rate=$(cat "$device"/ports/*/rate 2>/dev/null | head -n 1)
    rate=${rate%%[!0-9]*}
    echo "fabric ${device##*/} ${rate:-0}"
  done
  for device in /sys/class/cxi/*; do
    [ -e "$device" ] || continue
    speed=$(cat "$device"/device/net/*/speed 2>/dev/null | head -n 1)
    case $speed in '' | *[!0-9]*) speed=0 ;; esac
    echo "fabric ${device##*/} $((speed / 1000))"
  done
}

read_path() { # read_path NUMBER PATH
  if [ -d "$2" ]; then
    if ls "$2" >/dev/null; then state=ok; else state=unreadable; fi
  elif [ ! -e "$2" ]; then
    state=missing
  elif head -c 64 "$2" >/dev/null; then
    state=ok
  else
    state=unreadable
  fi
  echo "path $1 $state"
}

free_space() {
  set -- $(df -Pk . | tail -n 1)
  echo "free $4"
}

if [ "$local_rank" = 0 ]; then
  names= pids=
  mkdir "$probes" || exit 1
  probe system system_facts
  probe driver driver_facts
  probe fabric fabric_facts
  probe free free_space
  number=0
  while IFS= read -r path; do
    probe "path-$number" read_path "$number" "$path"
    number=$((number + 1))
  done <paths.txt
  left=$((${XFFL_CHECK_PATIENCE:-20} * 5))
  while [ "$left" -gt 0 ]; do
    hung=
    for name in $names; do [ -e "$probes/$name" ] || hung="$hung $name"; done
    [ -n "$hung" ] || break
    sleep 0.2
    left=$((left - 1))
  done
  {
    for name in $names; do
      if [ -e "$probes/$name" ]; then cat "$probes/$name"; else echo "hung $name"; fi
    done
    echo end
  } >"out/node-$rank.part" && mv "out/node-$rank.part" "out/node-$rank.txt"
  if [ -n "$hung" ]; then
    for pair in $pids; do
      [ -e "$probes/${pair%%=*}" ] || kill "${pair#*=}" 2>/dev/null
    done
    echo "xffl: on $(uname -n) these probes do not end:$hung" >&2
    exit 1
  fi
fi
[ $# -gt 2 ] || exit 0 # the facility has a trainer of its own: there is no `check`

# Sends the warning before the walltime, on its usual way: Slurm to the job's shell, xffl to the ranks. In an image the job's script
# sends it.
if [ "$rank" = 0 ] && [ -z "$XFFL_CHECK_SIGNAL" ]; then
  (
    while kill -0 $$ && [ ! -e out/awaits-signal ]; do sleep 0.2; done
    if [ -n "$SLURM_JOB_ID" ]; then
      scancel --batch --signal=USR1 "$SLURM_JOB_ID"
    else
      kill -USR1 "$PPID"
    fi
  ) >/dev/null 2>&1 </dev/null &
fi
XFFL_COMM_TIMEOUT=${XFFL_COMM_TIMEOUT:-120} exec "$@"
