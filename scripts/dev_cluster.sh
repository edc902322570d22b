#!/usr/bin/env bash
# Test facilities on this machine: each has a real sshd, munge, slurmctld and compute nodes with slurmd, in its own namespaces;
# or Grid Engine's sge_qmaster and sge_execd instead of Slurm.
#
#   scripts/dev_cluster.sh up [flavours] [NAME...]    default: alba brno; starts the facilities that are not up
#   scripts/dev_cluster.sh down [NAME...]             stops them; without names stops all and removes the state folder
#   scripts/dev_cluster.sh status                     one line per facility; exit code 1 when none is up
#   scripts/dev_cluster.sh describe NAME              "key=value" lines: host, user, key, folders, ...
#   scripts/dev_cluster.sh exec [--user] NAME COMMAND...   on its login node, as root or as the facility's user
#   scripts/dev_cluster.sh certificate NAME KEY VALIDITY   signs KEY.pub for the user: -V of ssh-keygen, as +2m
#   scripts/dev_cluster.sh wan NAME DELAY_MS RATE_MBIT LOSS_PCT [QUEUE_KB] | off | cut | heal   one way; rate 0: unlimited
#   scripts/dev_cluster.sh pids NAME DAEMON           sshd mover munged mariadbd slurmdbd slurmctld slurmd:N slurmstepd:N
#                                                     sge_qmaster sge_execd:N sge_shepherd:N
#   scripts/dev_cluster.sh stop NAME DAEMON [SIGNAL]  SIGTERM by default, then waits for its end; STOP and CONT only signal
#   scripts/dev_cluster.sh start NAME DAEMON
#   scripts/dev_cluster.sh node NAME N down|up        power off or boot a compute node
#   scripts/dev_cluster.sh host-key NAME              restarts sshd with another host key
#
# All commands: --state DIR (default ${TMPDIR:-/tmp}/xffl-testbed). Several testbeds may be up, each with its own state folder.
# Flavours of the facilities that `up` starts:
#   --nodes N (2)  --gpus N (2, per node)  --gpu-type T (as a100; default: untyped)
#   --dbd  accounting with slurmdbd and MariaDB (default: no accounting)
#   --queue gridengine  Grid Engine instead of Slurm: a queue main.q, a parallel environment `nodes` with one slot per node
#   --scratch-mb M  a small scratch           --min-job-age S (300)  seconds until the controller forgets an ended job
#   --max-startups X (as 1:1:1)  --max-sessions N  a strict sshd       --sshd 'Key value'  --slurm 'Key=value'
#   --clock S  the whole facility's clock is S seconds ahead (libfaketime; may be negative)
#   --compute-scratch PATH  compute nodes mount the scratch at PATH; their /scratch is empty
#   --noisy  a .bashrc that prints            --mover  a second host with SFTP only and the same scratch
#   --root DIR  another root file system with sshd and Slurm than this machine's (tests/support/testbed/debian11_root.sh makes one);
#               its /opt/site/bin, if there is one, is the PATH of the facility's user. The facility then sees no project folder.
#   --show DIR  a folder mounted read-only at the same path; the project folder always is
#   --owner PID  stops the whole testbed when that process ends
#
# Needs root, namespaces, overlayfs, /dev/net/tun (wan) and Debian's slurm-wlm munge openssh-server iproute2 (and
# slurmdbd mariadb-server, gridengine-master gridengine-exec): scripts/bootstrap.sh test. Exit code 77, with the reason, if these are missing.
set -euo pipefail
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
parts=$project/tests/support/testbed
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
registry=/run/xffl-testbed
clock_library=/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketimeMT.so.1
. "$parts/files.sh"
. "$parts/wan.sh"

fail() { echo "dev_cluster: $*" >&2; exit 1; }
usage() { echo "dev_cluster: $*; see the head of scripts/dev_cluster.sh" >&2; exit 2; }
skip() { echo "dev_cluster: SKIPPED: $*" >&2; exit 77; }

until_true() { # until_true SECONDS COMMAND...
  local ends=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $ends ] || return 1
    sleep 0.03
  done
}

# --- which facility ---------------------------------------------------------------------------------------------------
start_ticks() { # start_ticks PID: the start time, which with the pid identifies a process
  local stat
  read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
  set -- ${stat##*) }
  echo "${20}"
}
remember() { echo "$1 $(start_ticks "$1")" >"$2"; } # remember PID FILE
recall() {                                          # recall FILE: the pid, if the remembered process is alive
  local pid ticks
  [ -s "$1" ] && read -r pid ticks <"$1" && [ -n "$ticks" ] && [ "$(start_ticks "$pid")" = "$ticks" ] && echo "$pid"
}
is_up() { recall "$state/$1/init.pid" >/dev/null; }
is_ready() { [ -e "$state/$1/log/ready" ]; }
facilities() {
  local file
  for file in "$state"/*/etc/xffl-facility; do
    [ -e "$file" ] && basename "$(dirname "$(dirname "$file")")"
  done
  return 0
}
enter() { # enter NAME: sets init and the facility's settings
  [[ $1 =~ ^[a-z][a-z0-9]{0,9}$ ]] || usage "'$1' is not a facility's name: expected [a-z][a-z0-9]{0,9}"
  init=$(recall "$state/$1/init.pid") || fail "$1 is not up in $state"
  . "$state/$1/etc/xffl-facility"
}
inside() { nsenter -t "$init" -m -u -i -n -p "$@"; }

# --- requirements ------------------------------------------------------------------------------------------------------
check_machine() {
  local tool
  [ "$(id -u)" = 0 ] || skip "facilities need root for network, mount and pid namespaces"
  local daemons=(munged slurmctld slurmd sbatch)
  [ "$queue" = slurm ] || daemons=(sge_qmaster sge_execd qsub qconf)
  for tool in ip unshare nsenter setpriv flock ssh-keygen sshd "${daemons[@]}"; do
    command -v $tool >/dev/null || skip "$tool was not found: scripts/bootstrap.sh test installs it"
  done
  if [ -n "$dbd" ]; then
    for tool in slurmdbd mariadbd mariadb-install-db; do
      command -v $tool >/dev/null || skip "$tool was not found: scripts/bootstrap.sh test installs it"
    done
  fi
  [ -z "$clock" ] || [ -e "$clock_library" ] || skip "libfaketime was not found: scripts/bootstrap.sh test installs it"
  unshare --net --mount --uts --ipc --pid --fork --propagation private sh -c 'ip link add br0 type bridge && mount -t tmpfs t /mnt &&
    mkdir /mnt/u /mnt/w /mnt/r && mount -t overlay o -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/r' 2>/dev/null ||
    skip "this machine does not allow network and mount namespaces with an overlay of its root"
}

# A testbed owns eight networks, 198.18.(8 x slot + 0..7).0/24, an address range for test networks (RFC 2544).
slot_is_taken() { # by another running testbed
  local slot=$1 owner file
  read -r owner <"$registry/$slot/state" || return 1
  [ "$owner" != "$state" ] || return 1
  recall "$registry/$slot/starter" >/dev/null && return
  for file in "$owner"/*/init.pid; do recall "$file" >/dev/null && return; done
  return 1
}
free_slot() { # an unused slot, else the slot of a dead testbed
  local candidate
  for candidate in $(seq 0 31); do [ -s "$registry/$candidate/state" ] || { echo "$candidate"; return; }; done
  for candidate in $(seq 0 31); do slot_is_taken "$candidate" || { echo "$candidate"; return; }; done
}
take_slot() {
  mkdir -p "$registry"
  exec 9>"$registry/lock"
  flock 9
  local candidate
  if [ ! -s "$state/slot" ] || slot_is_taken "$(cat "$state/slot")"; then
    candidate=$(free_slot)
    [ -z "$candidate" ] || echo "$candidate" >"$state/slot"
    [ -s "$state/slot" ] || fail "32 testbeds are up; stop one with: scripts/dev_cluster.sh down --state DIR"
  fi
  slot=$(cat "$state/slot")
  mkdir -p "$registry/$slot"
  echo "$state" >"$registry/$slot/state"
  remember $$ "$registry/$slot/starter"
  exec 9>&-
}
free_net() { # the first network of the slot that no facility of this testbed uses
  local candidate
  for candidate in $(seq $((slot * 8)) $((slot * 8 + 7))); do
    grep -qs "net=\"$candidate\"" "$state"/*/etc/xffl-facility || { echo "$candidate"; return; }
  done
  fail "a testbed has at most eight facilities"
}

# --- up and down ------------------------------------------------------------------------------------------------------
boot() { # boot NAME: its settings must be written
  local dir=$state/$1 outer
  rm -f "$dir/init" "$dir/init.pid" "$dir/log/ready"
  setsid unshare --net --mount --uts --ipc --pid --fork --kill-child --propagation private \
    "$parts/facility.sh" boot "$dir" </dev/null >"$dir/log/init.log" 2>&1 9>&- &
  outer=$!
  until_true 10 test -s "$dir/init" || { cat "$dir/log/init.log" >&2; fail "$1 did not start"; }
  remember "$(cat "$dir/init")" "$dir/init.pid"
  disown $outer
  ip link del "xb$net" 2>/dev/null || true
  ip link add "xb$net" type veth peer name wan0 netns "$(cat "$dir/init")"
  ip addr add "198.18.$net.254/24" dev "xb$net"
  ip link set "xb$net" up
}
up_one() {
  is_up "$name" && return
  login=$name-login user=u$name
  if [ -s "$state/$name/net" ]; then net=$(cat "$state/$name/net"); else net=$(free_net); fi
  uid=$((61000 + net))
  write_facility
  echo "$net" >"$state/$name/net"
  boot "$name"
}
report_failure() {
  echo "dev_cluster: $1 did not become ready; its logs:" >&2
  tail -n 15 "$state/$1"/log/{init,slurmctld,sge_qmaster,node1}.log >&2 || true
  exit 1
}
write_known_hosts() {
  local each
  for each in $(facilities); do
    . "$state/$each/etc/xffl-facility"
    echo "198.18.$net.1 $(cut -d' ' -f1,2 "$state/$each/etc/ssh/host_key.pub")"
    [ -z "$mover" ] || echo "198.18.$net.2 $(cut -d' ' -f1,2 "$state/$each/etc/ssh/mover_key.pub")"
  done >"$state/known_hosts"
  for each in $(facilities); do
    . "$state/$each/etc/xffl-facility"
    printf 'Host %s\n  HostName 198.18.%s.1\n' "$each" "$net"
    printf '  User %s\n  IdentityFile %s/keys/id\n  IdentitiesOnly yes\n  UserKnownHostsFile %s/known_hosts\n  BatchMode yes\n' \
      "$user" "$state" "$state"
  done >"$state/ssh_config"
}
watch_owner() { # the testbed must not outlive a killed test
  [ -n "$owner" ] || return 0
  setsid bash -c 'while kill -0 "$1" 2>/dev/null && [ -e "$2/slot" ]; do sleep 1; done
    exec "$3" down --state "$2"' watch "$owner" "$state" "$project/scripts/dev_cluster.sh" </dev/null >/dev/null 2>&1 9>&- &
  disown $!
}
up() {
  check_machine
  mkdir -p "$state/keys"
  chmod 755 "$state"
  take_slot
  watch_owner
  make_key "$state/keys/id" testbed
  make_key "$state/keys/user_ca" user-ca
  make_key "$state/keys/certified" certified # in no authorized_keys: only its certificate is accepted
  local each
  for each in "${names[@]}"; do
    name=$each
    up_one
  done
  write_known_hosts
  for each in "${names[@]}"; do
    until_true 90 is_ready "$each" || report_failure "$each"
  done
  echo "up: ssh -F $state/ssh_config ${names[*]}"
}

wait_gone() { ! is_up "$1" && ! pids_of_namespace "$2" | grep -q .; }
pids_of_namespace() { # pids_of_namespace NS: processes whose network namespace is NS
  local each
  for each in /proc/[0-9]*; do
    [ "$(readlink "$each/ns/net" 2>/dev/null)" != "$1" ] || echo "${each#/proc/}"
  done
}
down_one() {
  local dir=$state/$1 pid namespace held
  # Links first: when no process is left, another testbed may take the network.
  if pid=$(recall "$dir/wan.pid"); then
    kill "$pid"
    until_true 5 test ! -e "/proc/$pid/stat" || true
  fi
  if [ -s "$dir/net" ] && is_up "$1"; then ip link del "xb$(cat "$dir/net")" 2>/dev/null || true; fi
  if pid=$(recall "$dir/init.pid"); then
    exec {held}<"/proc/$pid/ns/net" # the number of a namespace that is gone may be given to another testbed
    namespace=$(readlink "/proc/$pid/ns/net")
    kill -9 "$pid" # the kernel then kills all processes of the pid namespace
    until_true 20 wait_gone "$1" "$namespace" || fail "processes of $1 are still running: $(pids_of_namespace "$namespace" | tr '\n' ' ')"
    exec {held}<&-
  fi
  rm -f "$dir/init.pid" "$dir/wan.pid" "$dir/log/ready"
}
down() {
  local each all=
  if [ ${#names[@]} = 0 ]; then
    all=1
    [ -d "$state/keys" ] || return 0 # not the folder of a testbed
    mapfile -t names < <(facilities)
  fi
  for each in "${names[@]}"; do [ ! -d "$state/$each" ] || down_one "$each"; done
  if [ -n "$all" ]; then
    if [ -s "$state/slot" ] && [ "$(cat "$registry/$(cat "$state/slot")/state" 2>/dev/null)" = "$state" ]; then
      rm -rf "${registry:?}/$(cat "$state/slot")"
    fi
    rm -rf --one-file-system "$state"
  fi
}

# --- status and control -----------------------------------------------------------------------------------------------
status() {
  local each none=1
  for each in $(facilities); do
    if is_up "$each"; then
      . "$state/$each/etc/xffl-facility"
      echo "$each: up: $user@198.18.$net.1, $nodes nodes with $gpus GPUs${dbd:+, accounting}${mover:+, mover 198.18.$net.2}"
      none=
    else
      echo "$each: down"
    fi
  done
  [ -z "$none" ] || { echo "no facility is up in $state"; return 1; }
}
describe() {
  enter "$1"
  cat <<D
name=$name
host=198.18.$net.1
port=22
inner_host=198.19.$net.1
mover=${mover:+198.18.$net.2}
user=$user
uid=$uid
init=$init
key=$state/keys/id
certified_key=$state/keys/certified
known_hosts=$state/known_hosts
scratch=/scratch
home=/home/$user
folder=$state/$name
D
}
on_login() {
  local as_user=
  [ "$1" != --user ] || { as_user=1; shift; }
  enter "$1"
  shift
  local home=/root who=root prefix=()
  [ -z "$as_user" ] || { home=/home/$user who=$user prefix=(setpriv --reset-env --reuid "$uid" --regid "$uid" --clear-groups --); }
  inside "${prefix[@]}" env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin HOME=$home USER=$who LOGNAME=$who \
    LC_ALL=C.UTF-8 env -C "$home" "$@"
}
certificate() {
  enter "$1"
  ssh-keygen -q -s "$state/keys/user_ca" -I "$user" -n "$user" -V "$3" "$2.pub"
}
pids() { # pids of a daemon of the entered facility, in this machine's pid namespace
  local daemon=${1%%:*} node=${1#*:} namespace each comm=${1%%:*} found
  if [ "$node" != "$1" ]; then
    namespace=$(inside sh -c "readlink /proc/\$(cat /run/xffl/node$node.pid)/ns/net" 2>/dev/null) || return 0
  else
    namespace=$(readlink "/proc/$init/ns/net")
  fi
  [ "$daemon" != mover ] || comm=sshd
  for each in /proc/[0-9]*; do
    { read -r found <"$each/comm" && [ "$found" = "$comm" ] && [ "$(readlink "$each/ns/net")" = "$namespace" ]; } 2>/dev/null || continue
    case "$daemon" in # sshd and mover: a listener each, and its sessions
      sshd) ! is_movers "${each#/proc/}" || continue ;;
      mover) is_movers "${each#/proc/}" || continue ;;
    esac
    echo "${each#/proc/}"
  done
}
is_movers() { # finds the listener among the parents of a session
  local pid=$1 i parent
  for i in 1 2 3 4; do
    tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q mover_config && return
    parent=$(awk '/^PPid:/{print $2}' "/proc/$pid/status" 2>/dev/null) || return 1
    pid=$parent
  done
  return 1
}
no_pids() { [ -z "$(pids "$1")" ]; }
stop_daemon() {
  local signal=${2:-TERM} found
  found=$(pids "$1")
  [ -z "$found" ] || kill -s "$signal" $found 2>/dev/null || true
  case "$signal" in STOP | CONT | HUP | USR1 | USR2) return ;; esac
  until_true 10 no_pids "$1" && return
  kill -s KILL $(pids "$1") 2>/dev/null || true
  until_true 5 no_pids "$1" || fail "$name's $1 does not end"
}
node() {
  local pid
  case "$2" in
    down)
      pid=$(inside cat "/run/xffl/node$1.pid") || fail "$name has no node $1"
      inside sh -c "kill -9 $pid; rm -f /run/xffl/node$1.pid"
      ;;
    up) inside "$parts/facility.sh" node "$1" ;;
    *) usage "node NAME N down|up" ;;
  esac
}
host_key() {
  stop_daemon sshd
  rm "$state/$name/etc/ssh/host_key"*
  make_key "$state/$name/etc/ssh/host_key" "$login"
  inside sh -c 'cat >/etc/ssh/host_key' <"$state/$name/etc/ssh/host_key"
  inside "$parts/facility.sh" start sshd
}

# --- the command line -------------------------------------------------------------------------------------------------
state=${TMPDIR:-/tmp}/xffl-testbed queue=slurm
nodes=2 gpus=2 gpu_type= dbd= scratch_mb= min_job_age=300 clock= noisy= mover= compute_scratch= root=/ show=() sshd_lines=() slurm_lines=()
action=${1:-}
[ $# = 0 ] || shift
names=() owner=
while [ $# -gt 0 ]; do
  case "$1" in
    --state) state=$2; shift ;;
    --nodes) nodes=$2; shift ;;
    --gpus) gpus=$2; shift ;;
    --gpu-type) gpu_type=$2; shift ;;
    --dbd) dbd=1 ;;
    --queue) queue=$2; shift ;;
    --scratch-mb) scratch_mb=$2; shift ;;
    --min-job-age) min_job_age=$2; shift ;;
    --max-startups) sshd_lines+=("MaxStartups $2"); shift ;;
    --max-sessions) sshd_lines+=("MaxSessions $2"); shift ;;
    --sshd) sshd_lines+=("$2"); shift ;;
    --slurm) slurm_lines+=("$2"); shift ;;
    --clock) clock=$2; shift ;;
    --compute-scratch) compute_scratch=$2; shift ;;
    --noisy) noisy=1 ;;
    --mover) mover=1 ;;
    --root) root=$(realpath "$2"); shift ;;
    --show) show+=("$(realpath "$2")"); shift ;;
    --owner) owner=$2; shift ;;
    --user) names+=("$1") ;;
    -[0-9]*) names+=("$1") ;; # a certificate's validity, as -1m:+8s
    -*) usage "unknown option '$1'" ;;
    *)
      names+=("$1")
      # Arguments after the facility's name belong to the command.
      case "$action" in exec) [ ${#names[@]} = 1 ] && [ "$1" = --user ] || { shift; names+=("$@"); break; } ;; esac
      ;;
  esac
  shift
done
state=$(realpath -m "$state")
if [ "$root" = / ]; then
  show+=("$project")
else
  show+=("$parts")
  if [ -d "$root/opt/site/bin" ]; then sshd_lines+=("SetEnv PATH=/opt/site/bin"); fi
fi
case "$queue" in slurm | gridengine) ;; *) usage "unknown queue manager '$queue': expected slurm or gridengine" ;; esac
need() { [ ${#names[@]} -ge "$1" ] || usage "$action needs more arguments"; }
case "$action" in
  up)
    [ ${#names[@]} -gt 0 ] || names=(alba brno)
    for name in "${names[@]}"; do
      [[ $name =~ ^[a-z][a-z0-9]{0,9}$ ]] || usage "'$name' is not a facility's name: expected [a-z][a-z0-9]{0,9}"
    done
    up
    ;;
  down) down ;;
  status) status ;;
  describe) need 1; describe "${names[0]}" ;;
  exec) need 2; on_login "${names[@]}" ;;
  certificate) need 3; certificate "${names[@]}" ;;
  wan) need 2; enter "${names[0]}"; wan "${names[@]:1}" ;;
  pids) need 2; enter "${names[0]}"; pids "${names[1]}" ;;
  stop) need 2; enter "${names[0]}"; stop_daemon "${names[@]:1}" ;;
  start) need 2; enter "${names[0]}"; inside "$parts/facility.sh" start "${names[1]}" ;;
  node) need 3; enter "${names[0]}"; node "${names[@]:1}" ;;
  host-key) need 1; enter "${names[0]}"; host_key ;;
  *) usage "expected up, down, status, describe, exec, certificate, wan, pids, stop, start, node or host-key" ;;
esac
