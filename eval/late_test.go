package eval

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/eval/checkpoint"
)

// A run with late means ends with equal weights everywhere (every run checks that), repeats to the bit, also over TCP, and is another one than
// without a delay.
func TestLateRuns(t *testing.T) {
	run := func(method string, d int, bare bool) Run {
		r := tiny(t, "lstm-markov", method, 3, 8)
		r.Settings.Delay, r.Settings.Uncorrected = d, bare
		return r
	}
	losses := map[float64]bool{}
	for _, d := range []int{0, 1, 3, 20} {
		for _, bare := range []bool{false, true} {
			if d > 0 || !bare {
				losses[*do(t, run("dense", d, bare)).HeldOutLoss] = true
			}
		}
	}
	require.Len(t, losses, 7, "each is a run of its own")
	want := do(t, run("topk:ratio=0.05", 3, false))
	require.Greater(t, want.StateBytes, 24.0, "2D gradients are kept")
	for _, got := range []*Record{do(t, run("topk:ratio=0.05", 3, false)), overTCP(t, run("topk:ratio=0.05", 3, false))} {
		require.Equal(t, *want.HeldOutLoss, *got.HeldOutLoss)
		require.Equal(t, want.PayloadBytes, got.PayloadBytes)
		require.Equal(t, want.Bytes, got.Bytes)
	}
}

// A resumed run has its late means too.
func TestLateRunResumes(t *testing.T) {
	r := tiny(t, "lstm-markov", "topk:ratio=0.05", 2, 7)
	r.Settings.Delay = 2
	want := do(t, r)
	r.Checkpoints = Checkpoints{Dir: t.TempDir(), Every: 4, Resume: true}
	do(t, r)
	for k := range 2 { // drop the last checkpoint, so that it goes on from step 4
		kp := keeper{Checkpoints: r.Checkpoints}
		kp.header.Task, kp.header.Method, kp.header.Rank = r.Task.Name, r.name(), k
		steps, err := kp.steps()
		require.NoError(t, err)
		require.Equal(t, []int{4, 7}, steps)
		require.NoError(t, os.Remove(kp.path(7)))
		_, entries, err := checkpoint.Read(kp.path(4))
		require.NoError(t, err)
		for slot, step := range []int{2, 3} {
			bits := binary.LittleEndian.Uint64(entries[fmt.Sprintf("method/delayed/%d/rate", slot)])
			require.Equal(t, r.Settings.rate(step), math.Float64frombits(bits), "a correction belongs to the rate of its step")
		}
	}
	got := do(t, r)
	require.Equal(t, *want.HeldOutLoss, *got.HeldOutLoss)
	require.Equal(t, want.PayloadBytes, got.PayloadBytes)
}

// FedAvg sends the weights every K steps and at the end.
func TestFedAvg(t *testing.T) {
	r := tiny(t, "lstm-markov", "dense", 3, 10)
	plain := do(t, r)
	r.Settings.FedAvg = 4
	rec := do(t, r)
	require.Equal(t, "fedavg K=4", rec.Method)
	require.InDelta(t, 10./3, rec.PayloadRatio, 1e-9)
	require.InDelta(t, 10./3, *rec.WireRatio, 1e-9)
	require.NotEqual(t, *plain.HeldOutLoss, *rec.HeldOutLoss)
	require.Equal(t, *rec.HeldOutLoss, *do(t, r).HeldOutLoss)

	// With one worker an average changes nothing.
	one := tiny(t, "lstm-markov", "dense", 1, 6)
	alone := do(t, one)
	one.Settings.FedAvg = 2
	require.Equal(t, *alone.HeldOutLoss, *do(t, one).HeldOutLoss)
}

func TestFits(t *testing.T) {
	for _, c := range []struct {
		method string
		s      Settings
		want   string
	}{
		{"dgc", Settings{Delay: 1}, "momentum"}, {"topk", Settings{FedAvg: 2}, "topk"},
		{"dgc:momentum=0", Settings{Delay: 1}, ""}, {"topk", Settings{Delay: 1}, ""}, {"dense", Settings{FedAvg: 2}, ""}, {"dgc", Settings{}, ""},
	} {
		m, err := all.Methods().Parse(c.method)
		require.NoError(t, err)
		if err = Fits(m, c.s); c.want == "" {
			require.NoError(t, err, c.method)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
}

// TestTrace: all workers of the process are on the timeline, for a bounded number of steps after warm-up, and watching changes nothing.
func TestTrace(t *testing.T) {
	r := tiny(t, "resnet8-glyphs", "topk:ratio=0.01", 2, 30)
	r.Settings.Batch = 1
	want := do(t, r)
	require.Nil(t, want.Overlap)
	var b bytes.Buffer
	r.Trace, r.Overlap = &b, true
	rec := do(t, r)
	require.Equal(t, *want.HeldOutLoss, *rec.HeldOutLoss)
	require.NotNil(t, rec.Overlap)
	var trace struct {
		TraceEvents []struct {
			Ph, Cat string
			PID     int
			Args    struct{ Bucket, Step int }
		}
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &trace))
	type key struct {
		rank, step, bucket int
		cat                string
	}
	seen := map[key]bool{}
	for _, e := range trace.TraceEvents {
		if e.Ph == "X" {
			require.True(t, e.Args.Step >= 1 && e.Args.Step < 1+TraceSteps, "step %d", e.Args.Step)
			seen[key{e.PID, e.Args.Step, e.Args.Bucket, e.Cat}] = true
		}
	}
	for rank := range 2 {
		for step := 1; step < 1+TraceSteps; step++ {
			for bucket := range int(rec.Buckets) {
				for _, cat := range []string{"backward", "compress", "exchange", "decode"} {
					require.True(t, seen[key{rank, step, bucket, cat}], "rank %d, step %d, bucket %d, %s", rank, step, bucket, cat)
				}
			}
		}
	}
}
