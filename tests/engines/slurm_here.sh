#!/usr/bin/env bash
# A Slurm of one node on this machine, for the slow test: `slurm_here.sh start FOLDER`, `slurm_here.sh stop FOLDER`.
#
# Needs root and Debian's packages: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
# Everything that it writes is in FOLDER, and it ends only the processes whose ids stand there. One partition, `first`.
set -euo pipefail
order=$1 folder=$(realpath -m "$2")
socket=$folder/munge.socket

stop() {
  for name in slurmd slurmctld munged; do
    [ -s "$folder/$name.pid" ] && kill "$(cat "$folder/$name.pid")" 2>/dev/null || true
  done
}

if [ "$order" = stop ]; then
  stop
  exit 0
fi

mkdir -p "$folder/state" "$folder/spool"
chmod 711 "$folder"
[ -f "$folder/munge.key" ] || dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 status=none
chmod 600 "$folder/munge.key"
munged --force --key-file="$folder/munge.key" --socket="$socket" --pid-file="$folder/munged.pid" \
  --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"

# No cgroups and no accounting: a container has neither. Requeued jobs normally wait for two minutes.
cat >"$folder/slurm.conf" <<CONF
ClusterName=here
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=5,bf_interval=5,requeue_delay=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
MpiDefault=none
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=first Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm.conf
slurmctld
slurmd
for _ in $(seq 60); do
  if [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ]; then
    exit 0
  fi
  sleep 1
done
echo "no idle node within a minute: see $folder/slurmctld.log and slurmd.log" >&2
stop
exit 1
