package hooks_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/compresstest"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
)

// TestWarmup: first the mean, with momentum where the method owns one, then the method, which starts from that momentum: with everything sent
// nobody sees the change.
func TestWarmup(t *testing.T) {
	const size, n, total = 3, 300, 8
	for _, text := range []string{"topk:ratio=1", "dgc:ratio=1,masking=false", "dgc:ratio=1,masking=false,nesterov=true", "dgc:ratio=1,masking=false,momentum=0"} {
		for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
			m := method(t, text)
			warm, err := hooks.Warmup(m, 3)
			require.NoError(t, err)
			require.Equal(t, 3+m.Warmup, warm.Warmup)
			part := compress.NewPart("w", 20, n/20)
			dense := compresstest.NewCluster(t, compress.Dense(m.Momentum).New, dev, size, 1, part)
			c := compresstest.NewCluster(t, warm.New, dev, size, 1, part)
			mass := make([]float64, n)
			for step := range total {
				g := draw(uint64(step), size, n)
				for _, x := range g {
					for i, y := range x {
						mass[i] += 10 * math.Abs(float64(y))
					}
				}
				want, _ := dense.Step(g)
				got, _ := c.Step(g)
				for i := range want[0] {
					require.InDelta(t, want[0][i], got[0][i], float64((2*size+6)*(step+1))*0x1p-24*mass[i], "%s, step %d, element %d", text, step, i)
				}
			}
		}
	}
}

// After the warm-up the method is what it would be from the first step on, and its state can be saved and restored in between.
func TestWarmupThenMethod(t *testing.T) {
	const size, n = 2, 400
	warm, err := hooks.Warmup(method(t, "topk:ratio=0.05"), 2)
	require.NoError(t, err)
	part := compress.NewPart("w", 20, n/20)
	plain := compresstest.NewCluster(t, method(t, "topk:ratio=0.05").New, kernels.CPU(), size, 1, part)
	a := compresstest.NewCluster(t, warm.New, kernels.CPU(), size, 1, part)
	b := compresstest.NewCluster(t, warm.New, kernels.CPU(), size, 1, part)
	a.Step(draw(90, size, n))
	for r := range size {
		snap, err := compress.Save(context.Background(), a.Streams[r], a.Ranks[r])
		require.NoError(t, err)
		require.NoError(t, compress.Restore(context.Background(), b.Streams[r], b.Ranks[r], snap))
	}
	b.Step(draw(91, size, n))
	for step := range 3 {
		want, _ := plain.Step(draw(uint64(step), size, n))
		got, _ := b.Step(draw(uint64(step), size, n))
		sameBits(t, want[0], got[0])
	}
	_, err = hooks.Warmup(method(t, "topk"), -1)
	require.ErrorContains(t, err, "-1")
	_, err = hooks.Warmup(method(t, "dense"), 5)
	require.ErrorContains(t, err, "dense already")
}

// TestPerParameter: each tensor comes out as if its method served it alone.
func TestPerParameter(t *testing.T) {
	topk, sgd, dense := method(t, "topk:ratio=0.05"), method(t, "powersgd:rank=1,rate=0.1"), method(t, "dense")
	rules := []hooks.Rule{{Pattern: "linear", Method: dense}, {Pattern: "conv*", Fits: func(p ddp.Param) bool { return p.Len() > 1000 }, Method: topk}}
	w := newWorld(t, 2, kernels.Lazy(), 1<<20, model, func(ctx context.Context, cfg hooks.Config) (*hooks.Engine, error) {
		return hooks.PerParameter(ctx, cfg, rules, sgd)
	}, nil)
	g := draw(1, 2, modelLen())
	out := w.mustStep(g)[0]
	zeros := map[string]int{}
	at := 0
	for _, p := range model {
		for i := at; i < at+p.Len(); i++ {
			if out[i] == 0 {
				zeros[p.Name]++
			}
			if p.Name == "linear" {
				require.InDelta(t, (g[0][i]+g[1][i])/2, out[i], 0x1p-22*(math.Abs(float64(g[0][i]))+math.Abs(float64(g[1][i]))))
			}
		}
		at += p.Len()
	}
	require.Greater(t, zeros["conv2"], 1000, "1152 elements, of which two ranks send 58 each")
	require.Zero(t, zeros["linear"])

	for want, c := range map[string]struct {
		rules []hooks.Rule
		rest  compress.Method
	}{
		`pattern "["`:       {[]hooks.Rule{{Pattern: "[", Method: topk}}, sgd},
		`applies momentum`:  {[]hooks.Rule{{Pattern: "conv1", Method: topk}}, method(t, "dgc")},
		`pattern "conv1.w"`: {[]hooks.Rule{{Pattern: "conv1", Method: topk}, {Pattern: "conv1.w", Method: topk}}, sgd},
		`pattern "conv2"`:   {[]hooks.Rule{{Pattern: "conv*", Method: topk}, {Pattern: "conv2", Method: dense}}, sgd},
	} {
		newWorld(t, 1, kernels.CPU(), 1<<20, model, func(ctx context.Context, cfg hooks.Config) (*hooks.Engine, error) {
			e, err := hooks.PerParameter(ctx, cfg, c.rules, c.rest)
			if err == nil {
				_, err = e.Plan(model)
			}
			require.ErrorContains(t, err, want)
			return hooks.AllReduce(ctx, cfg)
		}, nil)
	}
}

// TestWire: what travels as sums is rounded to the wire's type, whatever the method, and counts as that.
func TestWire(t *testing.T) {
	var own compress.Registry
	compress.Register(&own, "turns", "many sums at once", turnsConfig{K: 4}, compress.Feedback, newTurns)
	turns, err := own.Parse("turns")
	require.NoError(t, err)
	for _, wire := range []kernels.DType{kernels.F16, kernels.BF16} {
		for _, text := range []string{"dense", "powersgd:rank=2", "topk:ratio=0.01", "turns"} {
			m := turns
			if text != "turns" {
				m = method(t, text)
			}
			t.Run(fmt.Sprint(text, "/", wire), func(t *testing.T) {
				run := func(wire kernels.DType) ([][]float32, hooks.Stats) {
					w := newWorld(t, 3, kernels.Lazy(), 1<<20, model, func(ctx context.Context, cfg hooks.Config) (*hooks.Engine, error) {
						cfg.Wire = wire
						return hooks.Compressed(ctx, cfg, m)
					}, nil)
					out := w.mustStep(draw(1, 3, modelLen()))
					sameBits(t, out[0], out[2])
					return out, w.engines[0].Stats()
				}
				exact, wide := run(kernels.F32)
				got, narrow := run(wire)
				require.Less(t, narrow.PayloadBytes, wide.PayloadBytes)
				if text == "dense" || text == "turns" {
					require.InDelta(t, wide.PayloadBytes, 2*narrow.PayloadBytes, 1, "a flag has a byte anyway")
				}
				eps := map[kernels.DType]float64{kernels.F16: 0x1p-11, kernels.BF16: 0x1p-8}[wire]
				at := 224 + 1152 + 16 + 6 + 2560 // the bias, dense with every method
				for i := at; i < modelLen(); i++ {
					sum := 0.0
					for _, x := range draw(1, 3, modelLen()) {
						sum += math.Abs(float64(x[i])) / 3
					}
					// Three hops and the owner round, each to half a unit in the last place of at most the sum of magnitudes.
					require.InDelta(t, exact[0][i], got[0][i], 4*eps*sum+0x1p-24)
				}
			})
		}
	}
}
