package hooks_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/compress/compresstest"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
)

// TestEngineEqualsReference drives the engine and the slow in-memory exchange with the same gradients. Every tensor has to come out with
// the same bits where it was compressed, and within the rounding of a mean where it went dense.
func TestEngineEqualsReference(t *testing.T) {
	for _, text := range []string{"dense", "topk:ratio=0.01", "dgc:ratio=0.01,warmup=5,clip=3", "dgc:ratio=0.02,nesterov=true,momentum=0.5",
		"topk:ratio=0.05,values=int8,exchange=twophase", "threshold:tau=0.3,exchange=twophase", "terngrad:exchange=twophase"} {
		for _, size := range []int{1, 2, 3, 4, 7, 8} {
			for _, bucket := range []int{1, 3000, 1 << 20} {
				for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
					t.Run(fmt.Sprintf("%s/ranks=%d/bucket=%d/%s", text, size, bucket, dev.Name()), func(t *testing.T) {
						equalsReference(t, text, size, bucket, dev)
					})
				}
			}
		}
	}
}

func equalsReference(t *testing.T, text string, size, bucket int, dev kernels.Device) {
	m := method(t, text)
	w := newWorld(t, size, dev, bucket, model, compressed(t, text), nil)
	refs := make([]*compresstest.Cluster, len(model))
	for i, p := range model {
		use := m
		if len(p.Shape) == 1 || p.Len() < 256 {
			use = compress.Dense(m.Momentum)
		}
		refs[i] = compresstest.NewCluster(t, use.New, kernels.CPU(), size, 42, compress.NewPart(p.Name, p.Shape...))
	}
	mass := make([]float64, modelLen())
	for step := range 6 {
		g := draw(uint64(step), size, modelLen())
		got := w.mustStep(g)
		for r := 1; r < size; r++ {
			sameBits(t, got[0], got[r])
		}
		at := 0
		for i, p := range model {
			hi := at + p.Len()
			part := make([][]float32, size)
			for r := range part {
				part[r] = g[r][at:hi]
				for j, x := range part[r] {
					mass[at+j] += math.Abs(float64(x)) * 10 // with momentum 0.9 what went in comes out ten times at most
				}
			}
			want, _ := refs[i].Step(part)
			for j := range want[0] {
				// One rounding for each of N products and sums, on each of the steps that have gone into this value.
				tol := float64((2*size+4)*(step+1)) * 0x1p-24 * mass[at+j]
				if d := math.Abs(float64(want[0][j]) - float64(got[0][at+j])); !(d <= tol) {
					t.Fatalf("step %d, %s[%d]: want %v, got %v", step, p.Name, j, want[0][j], got[0][at+j])
				}
			}
			at = hi
		}
	}
}

// TestPool: small tensors share one bucket and one selection, whatever the bucket size.
func TestPool(t *testing.T) {
	for _, bucket := range []int{1, 1 << 20} {
		w := newWorld(t, 3, kernels.Lazy(), bucket, model, compressed(t, "dgc:ratio=0.01,small=0.1,values=sign"), nil)
		pool := 0
		for _, b := range w.ranks[0].Buckets() {
			for _, s := range b.Spans {
				if s.Class == "pool small" {
					pool++
					require.Len(t, s.Params, 5, "conv1 has 216 elements, two norms, a bias and the tiny tensor")
				}
			}
		}
		require.Equal(t, 1, pool)
		for step := range 3 {
			out := w.mustStep(draw(uint64(step), 3, modelLen()))
			sameBits(t, out[0], out[2])
		}
		s := w.engines[0].Stats()
		require.Less(t, s.PayloadBytes, s.DenseBytes/30)
	}
}

// TestAcross: the k largest entries of all compressed tensors together go, whatever tensor they are in.
func TestAcross(t *testing.T) {
	w := newWorld(t, 1, kernels.CPU(), 1000, model, compressed(t, "topk:ratio=0.005,across=true"), nil)
	g := draw(3, 1, modelLen())[0]
	lo, hi := 224, 224+1152 // conv2
	for i := range g {
		if lo <= i && i < hi {
			g[i] *= 1000
		}
	}
	out := w.mustStep([][]float32{g})[0]
	sent := 0
	for i, x := range out {
		if x != 0 && lo <= i && i < hi {
			sent++
		}
	}
	require.Equal(t, 19, sent, "0.5 % of conv2 and linear, all of it from conv2")
}

// TestClipNorm: the whole gradient of each rank is scaled, not each tensor, and a rank's Inf does not silence the others.
func TestClipNorm(t *testing.T) {
	mk := func(ctx context.Context, cfg hooks.Config) (*hooks.Engine, error) {
		cfg.ClipNorm = 3
		return hooks.Compressed(ctx, cfg, method(t, "topk:ratio=1"))
	}
	for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
		w := newWorld(t, 4, dev, 1000, model, mk, nil)
		for step := range 2 {
			g := draw(uint64(step), 4, modelLen())
			for i := range g[2] {
				g[2][i] *= 1e-6 // this rank is below the limit
			}
			want := make([]float64, modelLen())
			for _, x := range g {
				var sum float64
				for _, v := range x {
					sum += float64(v) * float64(v)
				}
				scale := min(1, 3/math.Sqrt(4)/math.Sqrt(sum))
				for i, v := range x {
					want[i] += scale * float64(v) / 4
				}
			}
			out := w.mustStep(g)
			for i := range want {
				require.InDelta(t, want[i], out[3][i], 1e-6*math.Abs(want[i])+1e-7, "element %d", i)
			}
		}
		g := draw(9, 4, modelLen())
		g[1][modelLen()-1] = float32(math.Inf(1)) // in the first bucket to leave
		out := w.mustStep(g)
		require.NotZero(t, out[0][0], "the other buckets are exchanged")
		require.False(t, math.IsInf(float64(out[0][0]), 0))
	}
}

// TestBucketsDoNotMatter: a parameter's state belongs to it, so the layout must not change a bit of what is compressed.
func TestBucketsDoNotMatter(t *testing.T) {
	run := func(bucket int) (all [][]float32) {
		w := newWorld(t, 3, kernels.CPU(), bucket, model, compressed(t, "dgc:ratio=0.01"), nil)
		for step := range 4 {
			all = append(all, w.mustStep(draw(uint64(step), 3, modelLen()))[0])
		}
		return all
	}
	at := 8*27 + 8
	conv2 := func(x []float32) []float32 { return x[at : at+16*72] }
	a, b := run(1), run(1<<20)
	for step := range a {
		sameBits(t, conv2(a[step]), conv2(b[step]))
	}
}

// One rank's Inf must not enter anybody's residual: the bucket goes dense, no step is counted, and the next steps are those of a run that
// never saw it.
func TestNonFiniteLeavesNoTrace(t *testing.T) {
	for _, text := range []string{"dgc:ratio=0.01,warmup=10", "topk:ratio=0.01,values=int8,small=0.1,exchange=twophase", "powersgd", "onebit",
		"onebit:exchange=twophase", "threshold:tau=0.1", "threshold:tau=0.1,exchange=twophase", "terngrad", "terngrad:exchange=twophase", "int8"} {
		for _, bad := range []float64{math.Inf(1), math.NaN()} {
			t.Run(fmt.Sprintf("%s/%v", text, bad), func(t *testing.T) { leavesNoTrace(t, text, bad) })
		}
	}
}

func leavesNoTrace(t *testing.T, text string, bad float64) {
	clean := newWorld(t, 4, kernels.CPU(), 1<<20, model, compressed(t, text), nil)
	dirty := newWorld(t, 4, kernels.Lazy(), 1<<20, model, compressed(t, text), nil)
	poisoned := 0
	for step := range 5 {
		g := draw(uint64(step), 4, modelLen())
		if step == 2 {
			poison := draw(99, 4, modelLen())
			poison[1][300] = float32(bad)
			for _, out := range dirty.mustStep(poison) {
				require.False(t, out[300]-out[300] == 0, "the mean must show that it is not finite")
				require.InDelta(t, (poison[0][305]+poison[1][305]+poison[2][305]+poison[3][305])/4, out[305], 1e-5, "the rest of the bucket is a dense mean")
			}
			poisoned++
		}
		want, got := clean.mustStep(g)[0], dirty.mustStep(g)[0]
		if poisoned > 0 && len(clean.ranks[0].Buckets()) > 1 {
			// A bucket without the bad value has taken its step; the one with it has not.
			sameBits(t, want[224:1376], got[224:1376])
			continue
		}
		sameBits(t, want, got)
	}
	require.EqualValues(t, 1, dirty.engines[3].Stats().NonFinite)
	require.Zero(t, clean.engines[0].Stats().NonFinite)
}

// The wrong mean would hide in the tolerance of a training run: all ranks send the same, so the mean is what they sent.
func TestMeanIsDividedOnce(t *testing.T) {
	for _, text := range []string{"dense", "topk:ratio=1", "topk:ratio=0.3", "dgc:ratio=1,momentum=0"} {
		w := newWorld(t, 4, kernels.CPU(), 1<<20, model, compressed(t, text), nil)
		g := draw(3, 1, modelLen())[0]
		out := w.mustStep([][]float32{g, g, g, g})[0]
		sent := 0
		for i := range out {
			if out[i] != 0 {
				sent++
				require.InDelta(t, g[i], out[i], 4*0x1p-24*math.Abs(float64(g[i])), "%s, element %d", text, i)
			}
		}
		require.Greater(t, sent, modelLen()/4, text)
	}
}

// TestPayloadBytes compares the counter with what the contract says is offered.
func TestPayloadBytes(t *testing.T) {
	w := newWorld(t, 2, kernels.CPU(), 1<<20, []ddp.Param{{Name: "w", Shape: []int{100, 100}}, {Name: "b", Shape: []int{100}}}, compressed(t, "topk:ratio=0.01"), nil)
	before := w.engines[0].Stats()
	w.mustStep(draw(1, 2, 10100))
	s := w.engines[0].Stats().Sub(before)
	require.EqualValues(t, 4*10100, s.DenseBytes)
	// Flag, dense bias, header, 100 values, 100 indices at 8.2 bits.
	require.InDelta(t, 1+400+1+400+103, s.PayloadBytes, 5)

	w = newWorld(t, 2, kernels.CPU(), 1<<20, model, compressed(t, "dense"), nil)
	w.mustStep(draw(1, 2, modelLen()))
	s = w.engines[1].Stats()
	require.Equal(t, s.DenseBytes, s.PayloadBytes, "dense offers what it has, and needs no flag")
}

// TestDenseWhereThatIsLess: a quarter of a tensor from each of 4 ranks is less on the wire than a dense ring, from each of 8 it is more, and
// of signs in place of exact values it still is less.
func TestDenseWhereThatIsLess(t *testing.T) {
	for _, c := range []struct {
		text  string
		size  int
		dense bool
	}{{"topk:ratio=0.25", 4, false}, {"topk:ratio=0.25", 8, true}, {"topk:ratio=0.25,values=sign", 8, false}, {"topk:ratio=1", 2, true}, {"topk:ratio=0.9", 2, false}} {
		w := newWorld(t, c.size, kernels.CPU(), 1<<20, []ddp.Param{{Name: "w", Shape: []int{100, 100}}}, compressed(t, c.text), nil)
		w.mustStep(draw(1, c.size, 10000))
		s := w.engines[0].Stats()
		require.Equal(t, c.dense, s.PayloadBytes == 1+s.DenseBytes, "%s, %d ranks: %d of %d bytes", c.text, c.size, s.PayloadBytes, s.DenseBytes)
		require.LessOrEqual(t, s.PayloadBytes, 1+s.DenseBytes)
	}
}

// breaker damages what one rank receives, or stops it.
type breaker struct {
	collective.Group
	damage func(msgs [][]byte) [][]byte
	fail   error
}

func (b *breaker) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if b.fail != nil {
		return nil, b.fail
	}
	msgs, err := b.Group.AllGather(ctx, mine)
	if err == nil && b.damage != nil {
		msgs = b.damage(msgs)
	}
	return msgs, err
}

func TestMalformedPayloadNamesRankAndTensor(t *testing.T) {
	params := []ddp.Param{{Name: "layer.weight", Shape: []int{50, 50}}}
	for name, c := range map[string]struct {
		damage func(b []byte) []byte
		want   string
	}{
		"empty":   {func([]byte) []byte { return nil }, "rank 2"},
		"version": {func(b []byte) []byte { return append([]byte{99}, b[1:]...) }, "rank 2: message version 99"},
		"short":   {func(b []byte) []byte { return b[:len(b)-1] }, "rank 2: layer.weight: values"},
		"long":    {func(b []byte) []byte { return append(append([]byte{}, b...), 0) }, "rank 2: 1 bytes too long"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, kernels.CPU(), 1<<20, params, compressed(t, "topk:ratio=0.01"), func(r int, g collective.Group) collective.Group {
				if r != 0 {
					return g
				}
				return &breaker{Group: g, damage: func(m [][]byte) [][]byte { return [][]byte{m[0], m[1], c.damage(m[2])} }}
			})
			_, errs := w.step(draw(1, 3, 2500))
			require.ErrorContains(t, errs[0], c.want)
			// The others may have finished this step; the next one fails for all.
			_, errs = w.step(draw(2, 3, 2500))
			for r, err := range errs {
				require.Error(t, err, "rank %d", r)
			}
		})
	}
}

func TestOneRankFailsAllEnd(t *testing.T) {
	broken := errors.New("a cosmic ray")
	w := newWorld(t, 4, kernels.CPU(), 1000, model, compressed(t, "dgc:ratio=0.01"), func(r int, g collective.Group) collective.Group {
		if r != 2 {
			return g
		}
		return &breaker{Group: g, fail: broken}
	})
	done := make(chan []error, 1)
	go func() {
		_, errs := w.step(draw(1, 4, modelLen()))
		done <- errs
	}()
	select {
	case errs := <-done:
		require.ErrorIs(t, errs[2], broken)
		for r, err := range errs {
			require.Error(t, err, "rank %d", r)
			require.ErrorContains(t, err, "cosmic ray", "rank %d", r)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the other ranks hang")
	}
}

func TestDeviceFailureIsReported(t *testing.T) {
	broken := errors.New("device lost")
	w := newWorld(t, 1, kernels.FailAfter(30, broken), 1<<20, model, compressed(t, "dgc:ratio=0.01"), nil)
	var err error
	for step := 0; step < 10 && err == nil; step++ {
		var errs []error
		_, errs = w.step(draw(1, 1, modelLen()))
		err = errs[0]
	}
	require.ErrorIs(t, err, broken)
}

func TestMomentumIsOwnedOnce(t *testing.T) {
	w := newWorld(t, 1, kernels.CPU(), 1<<20, model, compressed(t, "dgc:momentum=0.8,nesterov=true"), nil)
	require.Equal(t, compress.Momentum{M: 0.8, Nesterov: true}, w.engines[0].OwnsMomentum())
	w = newWorld(t, 1, kernels.CPU(), 1<<20, model, compressed(t, "topk"), nil)
	require.Zero(t, w.engines[0].OwnsMomentum())
}

// State is saved by parameter name, so it may go to an engine with other buckets.
func TestSaveAndRestoreAcrossLayouts(t *testing.T) {
	mk := compressed(t, "dgc:ratio=0.01,warmup=6")
	a, b := newWorld(t, 2, kernels.CPU(), 1<<20, model, mk, nil), newWorld(t, 2, kernels.CPU(), 500, model, mk, nil)
	for step := range 3 {
		a.mustStep(draw(uint64(step), 2, modelLen()))
	}
	for r := range a.engines {
		snap, err := a.engines[r].Save()
		require.NoError(t, err)
		require.NoError(t, b.engines[r].Restore(snap))
	}
	for step := 3; step < 6; step++ {
		g := draw(uint64(step), 2, modelLen())
		x, y := a.mustStep(g)[0], b.mustStep(g)[0]
		sameBits(t, x[224:224+1152], y[224:224+1152]) // conv2
	}
}

// An engine that is set back to an earlier step goes on as it did from there, also where that was dense and it has been sparse since.
func TestRestoreIntoTheSameEngine(t *testing.T) {
	w := newWorld(t, 8, kernels.CPU(), 1<<20, model, compressed(t, "dgc:ratio=0.01,warmup=5"), nil)
	run := func() (all [][]float32) {
		for step := range 5 {
			all = append(all, w.mustStep(draw(uint64(step), 8, modelLen()))[0])
		}
		return all
	}
	var start []compress.Snapshot
	for _, e := range w.engines {
		snap, err := e.Save()
		require.NoError(t, err)
		start = append(start, snap)
	}
	want := run()
	for r, e := range w.engines {
		require.NoError(t, e.Restore(start[r]))
	}
	for step, got := range run() {
		sameBits(t, want[step], got)
	}
}

// BenchmarkStep is one rank's reducer step after warm-up; the allocations must not grow with the model.
func BenchmarkStep(b *testing.B) {
	for _, text := range []string{"dense", "topk", "dgc"} {
		for _, n := range []int{1 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/n=%d", text, 10*n), func(b *testing.B) {
				var params []ddp.Param
				for i := range 10 {
					params = append(params, ddp.Param{Name: fmt.Sprint(i), Shape: []int{n / 64, 64}})
				}
				w := newWorld(b, 1, kernels.CPU(), 4*n*3, params, compressed(b, text), nil)
				g := draw(1, 1, 10*n)[0]
				at := 0
				for i := range params {
					x, _ := kernels.Host(w.ranks[0].Grad(i))
					copy(x, g[at:])
					at += n
				}
				ctx := context.Background()
				step := func() {
					for i := len(params) - 1; i >= 0; i-- {
						if err := w.ranks[0].Ready(i); err != nil {
							b.Fatal(err)
						}
					}
					if err := w.ranks[0].Wait(ctx); err != nil {
						b.Fatal(err)
					}
				}
				step()
				b.SetBytes(int64(40 * n))
				b.ReportAllocs()
				for b.Loop() {
					step()
				}
			})
		}
	}
}

// BenchmarkMethods is a step of one rank with every method: the time in encode (feedback, Start, coding) and in decode (decoding, Next) as
// multiples of reading and writing the gradient once, measured in the same run.
func BenchmarkMethods(b *testing.B) {
	for _, text := range all.Methods().Names() {
		for _, n := range []int{100_000, 6_500_000, 25_000_000} {
			b.Run(fmt.Sprintf("%s/n=%d", text, n), func(b *testing.B) {
				params := []ddp.Param{{Name: "w", Shape: []int{n / 500, 500}}}
				w := newWorld(b, 1, kernels.CPU(), 8*n, params, compressed(b, text), nil)
				g := draw(1, 1, n)[0]
				for i := range g {
					g[i] *= 1e-3 // so that the default threshold sends some of it and not all
				}
				grad, _ := kernels.Host(w.ranks[0].Grad(0))
				ctx := context.Background()
				step := func() {
					if err := errors.Join(w.ranks[0].Ready(0), w.ranks[0].Wait(ctx)); err != nil {
						b.Fatal(err)
					}
				}
				var floor time.Duration
				copy(grad, g)
				step()
				before := w.engines[0].Stats()
				b.SetBytes(int64(4 * n))
				b.ReportAllocs()
				for b.Loop() {
					t := time.Now()
					copy(grad, g)
					floor += time.Since(t)
					step()
				}
				s := w.engines[0].Stats().Sub(before)
				b.ReportMetric(float64(s.Compress)/float64(floor), "encode-x-floor")
				b.ReportMetric(float64(s.Decode)/float64(floor), "decode-x-floor")
			})
		}
	}
}

var _ ddp.Hook = (*hooks.Engine)(nil)
