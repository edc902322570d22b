# Writes the files of a facility before it boots; sourced by scripts/dev_cluster.sh.
#
# STATE/NAME/etc is copied over the facility's /etc. The folders log, spool, munge, mysql, home, scratch and tmp belong
# to the facility and survive its reboot. Needs: state, and the settings of one facility (see write_facility).

make_key() { [ -f "$1" ] || ssh-keygen -q -t ed25519 -N '' -C "$2" -f "$1"; }

write_accounts() { # accounts of the facility only; this machine's accounts stay unchanged
  local etc=$1 known='root|daemon|nobody|nogroup|munge|slurm|sshd|mysql|sgeadmin'
  { grep -E "^($known):" /etc/passwd; echo "$user:x:$uid:$uid::/home/$user:/bin/bash"; } >"$etc/passwd"
  { grep -E "^($known):" /etc/group; echo "$user:x:$uid:"; } >"$etc/group"
  # '*', not '!': sshd treats an account with '!' as locked.
  cut -d: -f1 "$etc/passwd" | sed 's/$/:*:19700:0:99999:7:::/' >"$etc/shadow"
  chmod 600 "$etc/shadow"
  printf 'passwd: files\ngroup: files\nshadow: files\nhosts: files\n' >"$etc/nsswitch.conf"
  { echo "127.0.0.1 localhost"
    echo "198.19.$net.1 $login"
    local n
    for n in $(seq 1 "$nodes"); do echo "198.19.$net.$((10 + n)) $name$n"; done; } >"$etc/hosts"
  : >"$etc/motd"
}

write_sshd() {
  local etc=$1/ssh line
  mkdir -p "$etc"
  make_key "$etc/host_key" "$login"
  cp "$state/keys/user_ca.pub" "$etc/user_ca.pub"
  cat >"$etc/sshd_common" <<S
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
TrustedUserCAKeys /etc/ssh/user_ca.pub
UseDNS no
PrintMotd no
LogLevel VERBOSE
S
  { for line in "${sshd_lines[@]}"; do echo "$line"; done # sshd uses the first value of a keyword
    cat "$etc/sshd_common"
    printf 'ListenAddress 198.18.%s.1\nListenAddress 198.19.%s.1\n' "$net" "$net"
    printf 'HostKey /etc/ssh/host_key\nPidFile /run/sshd.pid\nSubsystem sftp internal-sftp\n'
  } >"$etc/sshd_config"
  rm -f "$etc/mover_key"* "$etc/mover_config"
  if [ -n "$mover" ]; then
    make_key "$etc/mover_key" "$name-mover"
    { cat "$etc/sshd_common"
      printf 'ListenAddress 198.18.%s.2\nHostKey /etc/ssh/mover_key\nPidFile /run/mover.pid\n' "$net"
      printf 'AllowTcpForwarding no\nPermitTTY no\nSubsystem sftp internal-sftp\nForceCommand internal-sftp\n'
    } >"$etc/mover_config"
  fi
  rm "$etc/sshd_common"
}

write_home() {
  local home=$1/$user
  mkdir -p "$home/.ssh"
  cp "$state/keys/id.pub" "$home/.ssh/authorized_keys"
  rm -f "$home/.bashrc"
  if [ -n "$noisy" ]; then
    printf '%s\n' 'echo "*** Welcome to the cluster; downtime on Tuesday ***"' \
      'printf "\033[31mYour quota is at 97%%\033[0m\r\n"' 'echo "module: command not found" >&2' >"$home/.bashrc"
  fi
  chown -R "$uid:$uid" "$home"
  chmod 700 "$home" "$home/.ssh"
}

write_slurm() {
  local etc=$1/slurm n
  mkdir -p "$etc"
  { cat <<C
ClusterName=$name
SlurmctldHost=$login(198.19.$net.1)
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=cred_expire=5
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
KillWait=3
WaitTime=0
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
PropagateResourceLimits=NONE
GresTypes=gpu
JobCompType=jobcomp/filetxt
JobCompLoc=/var/log/slurm/jobcomp.txt
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
C
    if [ -n "$dbd" ]; then
      printf 'AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=%s\n' "$login"
      printf 'AccountingStoragePort=6819\nAccountingStorageEnforce=associations,limits,qos\n'
    else
      echo 'AccountingStorageType=accounting_storage/none'
    fi
    # A later line replaces an earlier line (slurmd logs that), so the test's lines come last.
    for n in "SlurmdTimeout=15" "MinJobAge=$min_job_age" "${slurm_lines[@]}"; do echo "$n"; done
    for n in $(seq 1 "$nodes"); do
      echo "NodeName=$name$n NodeAddr=198.19.$net.$((10 + n)) CPUs=4 CoresPerSocket=4 RealMemory=4000 Gres=gpu:${gpu_type:+$gpu_type:}$gpus State=UNKNOWN"
    done
    cat <<C
PartitionName=main Nodes=ALL Default=YES MaxTime=1:00:00 PriorityTier=10 PreemptMode=OFF
PartitionName=debug Nodes=${name}1 MaxTime=5 PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=1:00:00 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=1:00:00 PriorityTier=100 PreemptMode=OFF
C
  } >"$etc/slurm.conf"
  echo "Name=gpu ${gpu_type:+Type=$gpu_type }File=/dev/fakegpu[0-$((gpus - 1))]" >"$etc/gres.conf"
  rm -f "$etc/slurmdbd.conf"
  if [ -n "$dbd" ]; then
    cat >"$etc/slurmdbd.conf" <<D
DbdHost=$login
SlurmUser=slurm
AuthType=auth/munge
PidFile=/run/slurm/slurmdbd.pid
LogFile=/var/log/slurm/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct
D
    chown slurm: "$etc/slurmdbd.conf"
    chmod 600 "$etc/slurmdbd.conf"
  fi
}

# The files that qconf reads when the facility boots (facility.sh).
write_grid_engine() {
  local etc=$1/gridengine n
  mkdir -p "$etc"
  { printf 'group_name @nodes\nhostlist'
    for n in $(seq 1 "$nodes"); do printf ' %s' "$name$n"; done
    echo; } >"$etc/hosts"
  cat >"$etc/parallel_environment" <<P
pe_name nodes
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule 1
control_slaves TRUE
job_is_first_task TRUE
urgency_slots min
accounting_summary TRUE
qsort_args NONE
P
}

write_munge() {
  mkdir -p "$1/etc/munge"
  [ -f "$1/etc/munge/munge.key" ] || head -c 128 /dev/urandom >"$1/etc/munge/munge.key"
  chown -R munge:munge "$1/etc/munge" "$1/munge" "$1/log/munged"
  chmod 700 "$1/etc/munge" "$1/munge" "$1/log/munged"
  chmod 600 "$1/etc/munge/munge.key"
}

# Every program of the facility reads the clock through libfaketime. Its shared memory belongs to one user and is named in the
# environment: a program that changes its user needs a fresh environment (--reset-env).
write_clock() {
  local etc=$1
  rm -f "$etc/ld.so.preload" "$etc/faketimerc"
  [ -n "$clock" ] || return 0
  echo "$clock_library" >"$etc/ld.so.preload"
  printf '%+d\n' "$clock" >"$etc/faketimerc"
}

# Settings read: name net user uid login nodes gpus dbd scratch_mb min_job_age clock noisy mover queue compute_scratch root show sshd_lines slurm_lines
write_facility() {
  local dir=$state/$name
  mkdir -p "$dir"/{etc,log/munged,spool,munge,mysql,home,scratch,tmp}
  chmod 755 "$dir" "$dir/etc" "$dir/log" "$dir/home"
  chmod 1777 "$dir/tmp"
  declare -p name net user uid login nodes gpus dbd scratch_mb mover queue compute_scratch root show |
    sed 's/^declare -[-x]* /declare -g /; s/^declare -a /declare -ga /' >"$dir/etc/xffl-facility"
  write_accounts "$dir/etc"
  write_sshd "$dir/etc"
  write_home "$dir/home"
  if [ "$queue" = gridengine ]; then
    write_grid_engine "$dir/etc"
  else
    write_slurm "$dir/etc"
    write_munge "$dir"
  fi
  write_clock "$dir/etc"
  chown "$uid:$uid" "$dir/scratch"
  chmod 755 "$dir/scratch"
  [ "$queue" != slurm ] || chown slurm:slurm "$dir/log" "$dir/spool"
}
