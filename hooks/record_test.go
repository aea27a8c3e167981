package hooks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
)

// TestRecorder: every bucket of every step has its spans, in their order, none over another of its category; the counters are those of Stats.
func TestRecorder(t *testing.T) {
	for _, text := range []string{"dense", "topk:ratio=0.01", "powersgd:rank=2"} {
		for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
			ctx := deadline(t)
			memory := &hooks.Memory{}
			var log bytes.Buffer
			ranks := rigs(t, ctx, 3, dev, model, text, func(h *hooks.Config, c *ddp.Config) {
				h.Recorder, h.Residuals = memory, true
				c.BucketBytes, c.FirstBytes, c.Moved = 6000, 5000, nil
			})
			const total = 4
			for step := range total {
				steps(t, ctx, ranks, model, draw(uint64(step), 3, modelLen()))
			}
			type key struct {
				rank, step, bucket int
				c                  hooks.Category
			}
			seen := map[key]hooks.Span{}
			last := map[[2]int]time.Time{} // by rank and category
			for _, s := range memory.Spans() {
				at := [2]int{s.Rank, int(s.Category)}
				require.False(t, s.Start.Before(last[at]), "%s overlaps the one before", s.Category)
				last[at] = s.Start.Add(s.Duration)
				if _, again := seen[key{s.Rank, s.Step, s.Bucket, s.Category}]; !again {
					seen[key{s.Rank, s.Step, s.Bucket, s.Category}] = s
				}
			}
			for rank := range 3 {
				for step := range total {
					for b := range ranks[0].red.Buckets() {
						back, ok := seen[key{rank, step, b, hooks.Backward}]
						require.True(t, ok, "rank %d, step %d, bucket %d", rank, step, b)
						comp, ok := seen[key{rank, step, b, hooks.Compress}]
						require.True(t, ok)
						wire, ok := seen[key{rank, step, b, hooks.Exchange}]
						require.True(t, ok)
						require.False(t, comp.Start.Before(back.Start.Add(back.Duration)))
						require.False(t, wire.Start.Before(comp.Start.Add(comp.Duration)))
					}
				}
			}
			list := memory.Steps()
			require.Len(t, list, 3*total)
			for _, c := range list {
				require.EqualValues(t, 4*modelLen(), c.DenseBytes)
				require.InDelta(t, float64(c.DenseBytes)/float64(c.PayloadBytes), c.Ratio, 1e-9)
				require.GreaterOrEqual(t, c.Overlap, 0.0)
				require.LessOrEqual(t, c.Overlap, 1.0)
				require.Positive(t, c.Backward)
				switch text {
				case "dense":
					require.Equal(t, 1.0, c.Density)
					require.Zero(t, c.Residual)
				case "topk:ratio=0.01":
					// 12 of conv2, 26 of linear, and the small tensors whole.
					require.InDelta(t, float64(12+26+modelLen()-1152-2560)/float64(modelLen()), c.Density, 1e-9)
					require.Positive(t, c.Residual)
				}
				hooks.Log{To: slog.New(slog.NewTextHandler(&log, nil))}.Step(c)
			}
			require.Equal(t, 3*total, strings.Count(log.String(), "overlap="))
			checkTrace(t, memory.Spans())
		}
	}
}

func checkTrace(t *testing.T, spans []hooks.Span) {
	var b bytes.Buffer
	require.NoError(t, hooks.WriteTrace(&b, spans))
	var trace struct {
		TraceEvents []struct {
			Ph, Cat string
			TS, Dur float64
			PID     int
			Args    struct {
				Bucket, Step *int
			}
		}
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &trace))
	count := map[string]int{}
	for _, e := range trace.TraceEvents {
		if e.Ph == "M" {
			continue
		}
		require.Equal(t, "X", e.Ph)
		require.Contains(t, []string{"backward", "compress", "exchange", "decode"}, e.Cat)
		require.GreaterOrEqual(t, e.TS, 0.0)
		require.Positive(t, e.Dur)
		require.NotNil(t, e.Args.Bucket)
		require.NotNil(t, e.Args.Step)
		count[e.Cat]++
	}
	require.Len(t, count, 4)
}

func TestMemoryIsBounded(t *testing.T) {
	m := &hooks.Memory{From: 2, Limit: 3}
	for step := range 10 {
		m.Span(hooks.Span{Step: step})
		m.Step(hooks.Counters{Step: step})
	}
	require.Len(t, m.Spans(), 3)
	require.Len(t, m.Steps(), 3)
	require.Equal(t, 2, m.Steps()[0].Step)
	require.NoError(t, hooks.WriteTrace(&bytes.Buffer{}, nil))
}

// A recorder that is off must not cost an allocation a step.
func BenchmarkRecorder(b *testing.B) {
	for name, r := range map[string]hooks.Recorder{"off": nil, "memory": &hooks.Memory{From: 1 << 40}} {
		b.Run(name, func(b *testing.B) {
			ctx := context.Background()
			ranks := rigs(b, ctx, 1, kernels.CPU(), model, "topk", func(h *hooks.Config, c *ddp.Config) { h.Recorder, c.BucketBytes = r, 4096 })
			b.ReportAllocs()
			for b.Loop() {
				for i := len(model) - 1; i >= 0; i-- {
					if err := ranks[0].red.Ready(i); err != nil {
						b.Fatal(err)
					}
				}
				if err := ranks[0].red.Wait(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
