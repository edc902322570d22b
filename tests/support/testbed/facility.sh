#!/usr/bin/env bash
# Process 1 of a facility, and the commands that start its daemons; scripts/dev_cluster.sh runs it in the facility's
# namespaces.
#
#   facility.sh boot STATE/NAME     process 1: makes the file systems, starts everything, reaps orphans
#   facility.sh start DAEMON        sshd mover munged mariadbd slurmdbd slurmctld slurmd:N sge_qmaster sge_execd:N, from inside
#   facility.sh node N              boots compute node N, from inside
#   facility.sh node-boot N         process 1 of a compute node
#
# A facility has its own net, mount, uts, ipc and pid namespaces; each compute node has its own below the facility's.
# The root is an overlay over this machine's root, or over another one (--root): programs are visible, writes stay in the overlay,
# and everything ends with process 1.
set -euo pipefail
self=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/facility.sh
export LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

until_true() { # until_true SECONDS COMMAND...: polls until COMMAND succeeds; fails after SECONDS
  local ends=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $ends ] || { echo "facility: gave up waiting for: $*" >&2; return 1; }
    sleep 0.03
  done
}

bind() { # bind FROM TO [ro]
  mkdir -p "$2"
  mount --bind "$1" "$2"
  [ -z "${3:-}" ] || mount -o remount,bind,ro "$2"
}

make_devices() { # make_devices FOLDER: /dev without this machine's disks
  mount -t tmpfs -o mode=755 xffl-dev "$1"
  local name
  for name in null zero full random urandom tty; do
    touch "$1/$name"
    mount --bind "/dev/$name" "$1/$name"
  done
  mkdir "$1/pts" "$1/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 xffl-pts "$1/pts"
  ln -s pts/ptmx "$1/ptmx"
  ln -s /proc/self/fd "$1/fd"
  mount -t tmpfs -o mode=1777 xffl-shm "$1/shm"
  # GPUs: Slurm sets CUDA_VISIBLE_DEVICES only for character devices.
  for name in $(seq 0 $((gpus - 1))); do
    touch "$1/fakegpu$name"
    mount --bind /dev/null "$1/fakegpu$name"
  done
}

make_root() { # moves this process and its children into the facility's root
  local mnt=$dir/mnt new=$dir/mnt/root path
  mkdir -p "$mnt"
  mount -t tmpfs -o mode=755 xffl-root "$mnt"
  mkdir "$mnt/upper" "$mnt/work" "$new"
  mount -t overlay xffl-root -o "lowerdir=$root,upperdir=$mnt/upper,workdir=$mnt/work" "$new"
  mkdir -p "$new"/{proc,sys,dev,run,scratch,root,old-root}
  mount -t proc proc "$new/proc"
  mount --rbind /sys "$new/sys"
  make_devices "$new/dev"
  mount -t tmpfs -o mode=755 xffl-run "$new/run"
  mount -t tmpfs -o mode=700 xffl-root-home "$new/root"
  bind "$dir/tmp" "$new/tmp"
  bind "$dir/home" "$new/home"
  bind "$dir/log" "$new/var/log/slurm"
  if [ "$queue" = slurm ]; then
    bind "$dir/spool" "$new/var/spool/slurmctld"
    bind "$dir/munge" "$new/var/lib/munge"
  fi
  [ -z "$dbd" ] || bind "$dir/mysql" "$new/var/lib/mysql"
  if [ -n "$scratch_mb" ]; then
    mount -t tmpfs -o "size=${scratch_mb}m,mode=755" xffl-scratch "$new/scratch"
    chown "$uid:$uid" "$new/scratch"
  else
    bind "$dir/scratch" "$new/scratch"
  fi
  # The project and its programs, which the private folders would hide.
  for path in "${show[@]}"; do bind "$path" "$new$path" ro; done
  # The facility's accounts, names and daemon settings are copies, independent of this machine's.
  rm -rf "$new"/etc/{slurm,munge}
  cp -a "$dir/etc/." "$new/etc/"
  cd "$new"
  pivot_root . old-root
  umount -l /old-root
  cd /
  hash -r # another root may have its programs elsewhere
  mkdir -p -m 755 /run/sshd /run/xffl
  [ "$queue" = slurm ] || return 0
  mkdir -p -m 755 /run/munge /run/slurm /run/mysqld /var/spool/slurmd
  chown munge: /run/munge
  chown slurm: /run/slurm
  [ -z "$dbd" ] || chown mysql: /run/mysqld
}

on_node() { # on_node N COMMAND...
  local n=$1
  shift
  nsenter -t "$(cat "/run/xffl/node$n.pid")" -n -u -m -p "$@"
}

# --- daemons ----------------------------------------------------------------------------------------------------------
start_daemon() {
  case "$1" in
    sshd | mover) # sshd listens before it writes its pid file
      rm -f "/run/$1.pid"
      /usr/sbin/sshd -f "/etc/ssh/${1}_config" -E "/var/log/slurm/$1.log"
      until_true 10 test -s "/run/$1.pid"
      ;;
    munged) setpriv --reset-env --reuid munge --regid munge --clear-groups /usr/sbin/munged --force --log-file=/var/log/slurm/munged/log --seed-file=/var/lib/munge/seed ;;
    mariadbd)
      setsid mariadbd --no-defaults --user=mysql --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock \
        --skip-networking --skip-log-bin --innodb-buffer-pool-size=32M --innodb-log-file-size=8M \
        --pid-file=/run/mysqld/mysqld.pid </dev/null >>/var/log/slurm/mariadbd.log 2>&1 &
      until_true 30 mariadb -S /run/mysqld/mysqld.sock -e 'select 1'
      ;;
    slurmdbd)
      slurmdbd
      until_true 30 bash -c "exec 3<>/dev/tcp/$login/6819"
      ;;
    slurmctld) slurmctld ;;
    slurmd:*) on_node "${1#*:}" slurmd -N "$name${1#*:}" ;;
    sge_qmaster)
      sge_qmaster
      until_true 10 qconf -sh
      ;;
    sge_execd:*) on_node "${1#*:}" sge_execd ;;
    *)
      echo "facility: unknown daemon '$1'" >&2
      return 2
      ;;
  esac
}

make_accounting() { # once per facility
  if [ ! -d /var/lib/mysql/mysql ]; then
    chown mysql: /var/lib/mysql
    mariadb-install-db --user=mysql --datadir=/var/lib/mysql --auth-root-authentication-method=socket --skip-test-db \
      >/var/log/slurm/mariadb-install.log 2>&1
  fi
  start_daemon mariadbd
  mariadb -S /run/mysqld/mysqld.sock -e "create user if not exists slurm@localhost identified via unix_socket;
    grant all on slurm_acct.* to slurm@localhost;"
  start_daemon slurmdbd
  [ -f /var/lib/mysql/xffl-accounts ] && return
  { sacctmgr -i add cluster "$name"
    sacctmgr -i add account proj cluster="$name"
    sacctmgr -i add qos single set MaxSubmitJobsPerUser=1
    sacctmgr -i add qos short set MaxWall=00:10:00 MaxTRESPerJob=node=1
    sacctmgr -i add user "$user" account=proj cluster="$name"
    sacctmgr -i modify user "$user" set qos=normal,single,short defaultqos=normal; } >/var/log/slurm/sacctmgr.log 2>&1
  touch /var/lib/mysql/xffl-accounts
}

# Debian's packages hold an empty cell, whose spool the overlay copies.
make_grid_engine() {
  local each file=/run/xffl/qconf
  echo "$login" >/var/lib/gridengine/default/common/act_qmaster
  start_daemon sge_qmaster
  { qconf -as "$login"
    for each in $(seq 1 "$nodes"); do qconf -ah "$name$each"; done
    qconf -Ahgrp /etc/gridengine/hosts
    qconf -Ap /etc/gridengine/parallel_environment
    # Answers within a second: schedules at once, writes the accounting at once, hears from nodes often.
    mkdir -p $file
    qconf -ssconf | sed 's/^schedule_interval.*/schedule_interval 0:0:1/; s/^flush_submit_sec.*/flush_submit_sec 1/
      s/^flush_finish_sec.*/flush_finish_sec 1/' >$file/scheduler
    qconf -Msconf $file/scheduler
    qconf -sconf | sed 's/flush_time=00:00:15/flush_time=00:00:01 accounting_flush_time=00:00:00/
      s/^load_report_time.*/load_report_time 00:00:02/; s/^max_unheard.*/max_unheard 00:00:30/' >$file/global
    qconf -Mconf $file/global
    qconf -sq | sed 's/^qname.*/qname main.q/; s/^hostlist.*/hostlist @nodes/; s/^pe_list.*/pe_list nodes/; s/^slots .*/slots 4/
      s/^load_thresholds.*/load_thresholds NONE/' >$file/queue
    qconf -Aq $file/queue; } >/var/log/slurm/qconf.log 2>&1
}

# --- compute nodes ----------------------------------------------------------------------------------------------------
boot_node() {
  local n=$1 pid
  rm -f "/run/xffl/node$n.pid" "/run/xffl/node$n.ready"
  setsid unshare --net --uts --mount --ipc --pid --fork --kill-child --propagation private \
    "$self" node-boot "$n" </dev/null >>"/var/log/slurm/node$n.log" 2>&1 &
  until_true 10 test -s "/run/xffl/node$n.pid"
  pid=$(cat "/run/xffl/node$n.pid")
  ip link add "node$n" type veth peer name eth0 netns "$pid"
  ip link set "node$n" master br0 up
  until_true 20 test -e "/run/xffl/node$n.ready"
}

node_main() { # process 1 of a node
  local n=$1 pid path
  read -r pid _ </proc/self/stat # the pid in the facility's namespace
  hostname "$name$n"
  mount -t proc proc /proc
  mkdir -p "/tmp/.node$n/tmp" "/tmp/.node$n/spool"
  chmod 1777 "/tmp/.node$n/tmp"
  [ "$queue" != slurm ] || mount --bind "/tmp/.node$n/spool" /var/spool/slurmd
  for path in "${show[@]}"; do # a project under /tmp stays visible
    [[ $path != /tmp/* ]] || bind "$path" "/tmp/.node$n$path"
  done
  mount --rbind "/tmp/.node$n/tmp" /tmp
  if [ -n "$compute_scratch" ]; then
    bind /scratch "$compute_scratch"
    mount -t tmpfs xffl-no-scratch /scratch
  fi
  echo "$pid" >"/run/xffl/node$n.part"
  mv "/run/xffl/node$n.part" "/run/xffl/node$n.pid"
  until_true 10 test -d /proc/sys/net/ipv4/conf/eth0
  ip link set lo up
  ip addr add "198.19.$net.$((10 + n))/24" dev eth0
  ip link set eth0 up
  if [ "$queue" = slurm ]; then slurmd -N "$name$n"; else sge_execd; fi
  : >"/run/xffl/node$n.ready"
  reap_forever
}

reap_forever() {
  while :; do
    sleep 86400 &
    wait $! || true
  done
}

# --- the facility -----------------------------------------------------------------------------------------------------
all_nodes_idle() {
  if [ "$queue" = gridengine ]; then
    [ "$(qstat -f | grep -cE '^main\.q@.* [0-9.]+ +lx-[a-z0-9]+ *$')" = "$nodes" ]
    return
  fi
  [ "$(sinfo -h -N -r -p main -o %T | grep -cE '^(idle|mix|alloc|compl)')" = "$nodes" ]
}

facility_main() {
  dir=$1
  local pid n jobs=()
  read -r pid _ </proc/self/stat # the pid in this machine's namespace
  echo "$pid" >"$dir/init.part"
  mv "$dir/init.part" "$dir/init"
  . "$dir/etc/xffl-facility"
  hostname "$login"
  until_true 10 test -d /proc/sys/net/ipv4/conf/wan0
  make_root
  ip link set lo up
  ip addr add "198.18.$net.1/24" dev wan0
  [ -z "$mover" ] || ip addr add "198.18.$net.2/32" dev wan0
  ip link set wan0 up
  ip link add br0 type bridge
  ip addr add "198.19.$net.1/24" dev br0
  ip link set br0 up
  [ "$queue" != slurm ] || start_daemon munged
  start_daemon sshd
  [ -z "$mover" ] || start_daemon mover
  [ -z "$dbd" ] || make_accounting
  if [ "$queue" = slurm ]; then start_daemon slurmctld; else make_grid_engine; fi
  for n in $(seq 1 "$nodes"); do
    boot_node "$n" &
    jobs+=($!)
  done
  for n in "${jobs[@]}"; do wait "$n"; done
  until_true 60 all_nodes_idle
  : >/var/log/slurm/ready
  reap_forever
}

action=$1
shift
if [ "$action" != boot ]; then . /etc/xffl-facility; fi
case "$action" in
  boot) facility_main "$1" ;;
  start) start_daemon "$1" ;;
  node) boot_node "$1" ;;
  node-boot) node_main "$1" ;;
  *) echo "facility: unknown action '$action'" >&2; exit 2 ;;
esac
