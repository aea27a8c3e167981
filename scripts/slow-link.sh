#!/usr/bin/env bash
# How much of the exchange hides behind backward on a slow link: ranks in network namespaces, each behind a token bucket, train with 0.1 MiB
# buckets. For each rate it prints the share of min(backward, exchange) in which both went on at once, and leaves the timelines in OUT.
#
#   sudo scripts/slow-link.sh [RATE ...]          default: 1gbit 100mbit
#
# Settings by environment: RANKS=2 TASK=resnet20-glyphs METHOD=dense BUCKET_MB=0.1 STEPS=25 BATCH=8 OUT=out/slow-link GRADPRESS=path of a binary
set -euo pipefail

RANKS=${RANKS:-2} TASK=${TASK:-resnet20-glyphs} METHOD=${METHOD:-dense} BUCKET_MB=${BUCKET_MB:-0.1} STEPS=${STEPS:-25} BATCH=${BATCH:-8}
OUT=${OUT:-out/slow-link}
PORT=29511 NET=10.213.77
[ $# -gt 0 ] || set -- 1gbit 100mbit

if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! command -v tc >/dev/null; then
	echo "slow-link: skipped: it needs root, ip and tc" >&2
	exit 0
fi
mkdir -p "$OUT"
if [ -z "${GRADPRESS:-}" ]; then
	GRADPRESS=$OUT/gradpress
	go build -o "$GRADPRESS" ./cmd/gradpress
fi
GRADPRESS=$(realpath "$GRADPRESS")

tag=gp$$
clean() {
	for r in $(seq 0 $((RANKS - 1))); do
		ip link del "$tag.$r" 2>/dev/null || true
		ip netns del "$tag-$r" 2>/dev/null || true
	done
	ip link del "$tag" 2>/dev/null || true
}
trap clean EXIT

ip link add "$tag" type bridge
ip link set "$tag" up
for r in $(seq 0 $((RANKS - 1))); do
	ip netns add "$tag-$r"
	ip link add "$tag.$r" type veth peer name eth0 netns "$tag-$r"
	ip link set "$tag.$r" master "$tag" up
	ip -n "$tag-$r" addr add "$NET.$((r + 1))/24" dev eth0
	ip -n "$tag-$r" link set eth0 up
	ip -n "$tag-$r" link set lo up
done

for rate in "$@"; do
	# Both directions of every rank's cable: what leaves the rank, and what leaves the bridge for it.
	for r in $(seq 0 $((RANKS - 1))); do
		tc -n "$tag-$r" qdisc replace dev eth0 root tbf rate "$rate" burst 128kb latency 400ms
		tc qdisc replace dev "$tag.$r" root tbf rate "$rate" burst 128kb latency 400ms
	done
	pids=()
	for r in $(seq 0 $((RANKS - 1))); do
		RANK=$r WORLD_SIZE=$RANKS LOCAL_RANK=0 MASTER_ADDR=$NET.1 MASTER_PORT=$PORT GOMAXPROCS=${GOMAXPROCS:-2} \
			ip netns exec "$tag-$r" "$GRADPRESS" eval --task "$TASK" --methods "$METHOD" --steps "$STEPS" --batch "$BATCH" --train-limit 512 \
			--bucket-mb "$BUCKET_MB" --json --out "$OUT" --trace "$OUT/trace.$rate.json" >"$OUT/$rate.rank$r.json" 2>"$OUT/$rate.rank$r.log" &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do
		wait "$pid" || { cat "$OUT/$rate".rank*.log >&2; exit 1; }
	done
	field() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" "$OUT/$rate.rank0.json"; }
	awk -v rate="$rate" -v hidden="$(field overlap)" -v steps="$(field steps)" -v back="$(field seconds_backward)" -v wire="$(field seconds_exchange)" \
		-v wait="$(field seconds_wait)" 'BEGIN { printf "%-8s hidden %.0f %%   ms a step: forward and backward %.1f, exchange %.1f, wait %.1f\n",
			rate, 100 * hidden, 1000 * back / steps, 1000 * wire / steps, 1000 * wait / steps }'
done
