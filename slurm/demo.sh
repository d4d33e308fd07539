#!/usr/bin/env bash
# `make slurm-demo` runs this with a development cluster: a run on two nodes, requeued and resumed, and a sweep.
set -euo pipefail
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/launch
folder=$(mktemp -d /tmp/launch-slurm-demo-XXXX)
cd "$folder"

say() { printf '\n$ %s\n' "$*"; }
do_it() { say "$*"; "$@"; }

follow() { # Print the status of run $1 until it is in one of the states $2.
  local now before=
  while :; do
    now=$("$launch" status "$1" | tail -n 1)
    [ "$now" = "$before" ] || echo "$now"
    before=$now
    for state in $2; do case $now in "$1  $state"*) return ;; esac; done
    sleep 1
  done
}

do_it sinfo
small=(model=tiny model.num_hidden_layers=2 model.vocab_size=512 parallel=fsdp precision=fp32 data=synthetic
  train.sequence_length=64 cluster=slurm hardware.device=cpu)
run=("${small[@]}" train.steps=40 cluster.nodes=2 cluster.gpus_per_node=2 run.name=demo)
do_it "$launch" show "${run[@]}"
do_it "$launch" "${run[@]}"
follow demo running
until [ -s runs/demo/metrics.jsonl ]; do sleep 1; done
do_it scancel --signal=USR2 "$(sed 's/.*"job_id": "\([0-9]*\)".*/\1/' runs/demo/submission.json)"
follow demo "requeued finished failed"
follow demo "finished failed"
say "first and last line of metrics.jsonl, and the saved steps"
sed -n '1p;$p' runs/demo/metrics.jsonl
ls runs/demo/checkpoints

do_it "$launch" -m "${small[@]}" train.steps=10 optimizer.lr=1e-3,3e-3 cluster.gpus_per_node=1 run.name=rates
while "$launch" status --json rates | grep -qE '"(queued|running|requeued)"'; do sleep 1; done
do_it "$launch" status rates

echo "all files: $folder"
[ "$(cat runs/demo/state.json runs/rates/*/state.json | grep -c '"state": "finished"')" = 3 ]
