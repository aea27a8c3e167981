package quant_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/compresstest"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/quant"
)

func newMethod(t testing.TB, text string) func(compress.Set) (compress.Compressor, error) {
	var r compress.Registry
	quant.Register(&r)
	m, err := r.Parse(text)
	require.NoError(t, err)
	return m.New
}

func TestLaws(t *testing.T) {
	for text, owed := range map[string]string{
		"onebit:exchange=gather":              "residual",
		"onebit:group=column,exchange=gather": "residual",
		"onebit:group=row,exchange=gather":    "residual",
		"onebit:group=tensor,exchange=gather": "residual",
		"threshold":                           "residual",
		"threshold:tau=2":                     "residual",
		"terngrad":                            "",
		"terngrad:clip=0":                     "",
		"terngrad:share_scale=true":           "",
		"terngrad:share_scale=true,clip=1":    "",
		"terngrad:exchange=twophase":          "",
		"int8:exchange=gather":                "residual",
		"int8:block=7,exchange=gather":        "residual",
		"int8:block=1000000,exchange=gather":  "residual",
		"fp16":                                "",
		"bf16":                                "",
	} {
		full := text == "onebit:exchange=gather" || text == "threshold" || strings.HasPrefix(text, "terngrad:") && !strings.Contains(text, "clip") ||
			text == "int8:block=7,exchange=gather"
		t.Run(text, func(t *testing.T) {
			compresstest.Run(t, compresstest.Law{New: newMethod(t, text), Owed: owed, Contracts: owed != "", Variant: !full})
		})
	}
}

// Through owners what went in still comes out or is owed, by a rank or by an owner.
func TestLawsThroughOwners(t *testing.T) {
	for _, text := range []string{"onebit:exchange=twophase", "onebit:exchange=twophase,group=row", "int8:exchange=twophase,block=7",
		"threshold:exchange=twophase,tau=0.3", "threshold:exchange=twophase,tau=2"} {
		t.Run(text, func(t *testing.T) {
			compresstest.Run(t, compresstest.Law{New: newMethod(t, text), Owed: "residual", Owners: true, Contracts: true, Variant: true})
		})
	}
}

// fresh is a compressor that has done nothing yet, a stream, and a gradient for it, zeros where g is nil.
func fresh(t testing.TB, text string, set compress.Set, g []float32) (compress.Compressor, kernels.Stream, kernels.Buf[float32]) {
	c, err := newMethod(t, text)(set)
	require.NoError(t, err)
	s, err := kernels.CPU().NewStream()
	require.NoError(t, err)
	v, err := kernels.NewBuf[float32](kernels.CPU(), set.Len())
	require.NoError(t, err)
	if g != nil {
		kernels.Write(s, v, g)
	}
	return c, s, v
}

// offer is what a fresh compressor of a set of one tensor offers first.
func offer(t testing.TB, text string, set compress.Set, g []float32) (compress.Compressor, compress.Payload) {
	c, s, v := fresh(t, text, set, g)
	p, err := c.Start(context.Background(), s, v)
	require.NoError(t, err)
	return c, p.(*compress.Many).Of[0]
}

// TestAutoGoesByOwner: two-phase is taken from as many ranks on as it costs fewer bytes, and left where it cannot be had.
func TestAutoGoesByOwner(t *testing.T) {
	first := func(text string, size int) string {
		set := compress.Set{Parts: []compress.Part{compress.NewPart("w", 64, 27)}, Size: size, Dev: kernels.CPU()}
		c, p := offer(t, text, set, nil)
		return fmt.Sprintf("%T of %d states", p, len(c.State()))
	}
	for text, from := range map[string]int{"onebit": 3, "int8": 3, "threshold:exchange=auto": 3, "terngrad:exchange=auto": 4} {
		name, _, _ := strings.Cut(text, ":")
		for _, size := range []int{1, 2, 3, 4, 8} {
			want := "gather"
			if size >= from {
				want = "twophase"
			}
			require.Equal(t, first(name+":exchange="+want, size), first(text, size), "%s on %d ranks", text, size)
		}
	}
	require.Equal(t, first("terngrad:exchange=twophase", 127), first("terngrad:exchange=auto", 127))
	require.Equal(t, first("terngrad", 128), first("terngrad:exchange=auto", 128))
	_, err := newMethod(t, "terngrad:exchange=twophase")(compress.Set{Size: 128, Dev: kernels.CPU()})
	require.ErrorContains(t, err, "at most 127 ranks, these are 128")
}

// TestTernGradSums: what owners hand out is, but for rounding, what a gather of ternaries of the same scale gives.
func TestTernGradSums(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 8} {
		for _, n := range []int{1, 3, 4, 17, 500} {
			parts := []compress.Part{compress.NewPart("a", n), compress.NewPart("b", 3, n)}
			want := compresstest.NewCluster(t, newMethod(t, "terngrad:share_scale=true"), kernels.CPU(), size, 6, parts...)
			got := compresstest.NewCluster(t, newMethod(t, "terngrad:exchange=twophase"), kernels.Lazy(), size, 6, parts...)
			for step := range 3 {
				g := compresstest.Gradients(rand.New(rand.NewPCG(5, uint64(step))), 0, size, 4*n)
				w, _ := want.Step(g)
				x, _ := got.Step(g)
				largest := 0.0
				for _, v := range w[0] {
					largest = max(largest, math.Abs(float64(v)))
				}
				require.InDeltaSlice(t, w[0], x[0], largest*float64(size)*0x1p-23, "%d ranks, %d entries", size, n)
			}
		}
	}
}

// TestThresholdOwners: of an entry that all ranks send, all receive as much; one that a rank sends alone comes once means of it sum up to over tau.
func TestThresholdOwners(t *testing.T) {
	const tau = 0.5
	c := compresstest.NewCluster(t, newMethod(t, "threshold:exchange=twophase,tau=0.5"), kernels.CPU(), 4, 0, compress.NewPart("w", 6))
	g := make([][]float32, 4)
	for r := range g {
		g[r] = []float32{0, -0.75, 0, 0, 0, 0}
	}
	g[2][4] = 0.75 // alone: a mean of tau/4 a step
	for step := range 9 {
		means, _ := c.Step(g)
		want := make([]float32, 6)
		if step > 0 { // after the first the owner owes no more than tau
			want[1] = -tau
		}
		if step == 4 || step == 8 { // 5/4 tau, and 4/4 more with what was left
			want[4] = tau
		}
		require.Equal(t, want, means[3], "step %d", step)
	}
}

func TestBadSettings(t *testing.T) {
	var r compress.Registry
	quant.Register(&r)
	for text, want := range map[string]string{
		"threshold:tau=0": "tau must be over 0", "threshold:tau=-1": "tau must be over 0", "threshold:tau=1e-50": "tau must be over 0",
		"threshold:tau=1e39": "within float32", "threshold:tau=NaN": "finite", "terngrad:clip=-1": "clip must be 0 (off) or more",
		"terngrad:clip=1e39": "clip", "terngrad:share_scale=perhaps": "true or false", "onebit:group=diagonal": "column, row, tensor or auto",
		"onebit:exchange=shout": "gather, twophase, auto", "int8:block=0": "block must be at least 1", "int8:block=-8": "at least 1",
		"int8:block=2.5": "whole number", "fp16:block=1": "no settings", "bf16:tau=1": "no settings",
	} {
		_, err := r.Parse(text)
		require.ErrorContains(t, err, want, text)
	}
}

// What is not finite passes through the casts only.
func TestTransparent(t *testing.T) {
	var r compress.Registry
	quant.Register(&r)
	for _, name := range r.Names() {
		m, err := r.Parse(name)
		require.NoError(t, err)
		require.Equal(t, name == "fp16" || name == "bf16", m.Transparent, name)
	}
}

// TernGrad is unbiased but for the clip: over many steps the mean of what it sends is the mean of the clipped gradients.
func TestTernGradIsUnbiased(t *testing.T) {
	const n, ranks, steps = 61, 3, 3000
	rng := rand.New(rand.NewPCG(9, 9))
	g := compresstest.Gradients(rng, 0, ranks, n)
	for _, text := range []string{"terngrad", "terngrad:clip=0", "terngrad:share_scale=true", "terngrad:exchange=twophase", "terngrad:clip=1"} {
		t.Run(text, func(t *testing.T) {
			clip := 2.5
			_, _ = fmt.Sscanf(text, "terngrad:clip=%g", &clip)
			clipped, scales, shared := make([][]float64, ranks), make([]float64, ranks), 0.0
			for r := range g {
				clipped[r], scales[r] = clipTo(g[r], clip)
				shared = max(shared, scales[r])
			}
			c := compresstest.NewCluster(t, newMethod(t, text), kernels.CPU(), ranks, 5, compress.NewPart("w", n))
			sum := make([]float64, n)
			for range steps {
				means, _ := c.Step(g)
				for i, x := range means[0] {
					sum[i] += float64(x)
				}
			}
			for i := range sum {
				var want, variance float64
				for r := range clipped {
					s := scales[r]
					if text == "terngrad:share_scale=true" || text == "terngrad:exchange=twophase" {
						s = shared
					}
					x := math.Abs(clipped[r][i])
					want += clipped[r][i] / ranks
					variance += x * (s - x) / (ranks * ranks) // of s times a Bernoulli trial of probability x/s
				}
				// Five standard deviations, and a rounding of each addition.
				tol := 5*math.Sqrt(variance/steps) + 8*0x1p-24*shared
				require.InDelta(t, want, sum[i]/steps, tol, "element %d", i)
			}
		})
	}
}

// clipTo clips to so many population standard deviations, 0 being none, and returns the largest magnitude that is left.
func clipTo(g []float32, clip float64) (x []float64, most float64) {
	var mean, squares float64
	for _, v := range g {
		mean += float64(v) / float64(len(g))
	}
	for _, v := range g {
		squares += (float64(v) - mean) * (float64(v) - mean)
	}
	limit := clip * math.Sqrt(squares/float64(len(g)))
	for _, v := range g {
		y := float64(v)
		if clip > 0 {
			y = min(max(y, -limit), limit)
		}
		x, most = append(x, y), max(most, math.Abs(y))
	}
	return x, most
}

// Ranks draw independently, the same seed draws alike, and a tensor's name decides with it.
func TestTernGradDraws(t *testing.T) {
	g := compresstest.Gradients(rand.New(rand.NewPCG(3, 3)), 0, 1, 100)
	draw := func(rank int, seed uint64, name string) []float32 {
		set := compress.Set{Parts: []compress.Part{compress.NewPart(name, 100)}, Rank: rank, Size: 2, Seed: seed, Dev: kernels.CPU()}
		return step(t, "terngrad", set, g[0])
	}
	first := draw(0, 1, "w")
	require.Equal(t, first, draw(0, 1, "w"))
	require.NotEqual(t, first, draw(1, 1, "w"))
	require.NotEqual(t, first, draw(0, 2, "w"))
	require.NotEqual(t, first, draw(0, 1<<40|1, "w"))
	require.NotEqual(t, first, draw(0, 1, "x"))
}

// step runs the first step of a rank that receives only what it sends itself.
func step(t testing.TB, text string, set compress.Set, g []float32) []float32 {
	ctx := context.Background()
	c, s, v := fresh(t, text, set, g)
	p, err := c.Start(ctx, s, v)
	var l loop
	for ; p != nil && err == nil; p, err = c.Next(ctx, s, *l.back(p), v) {
	}
	require.NoError(t, err)
	out := make([]float32, len(g))
	require.NoError(t, kernels.Read(ctx, s, out, v))
	return out
}

// loop hands a rank its own payload back, unencoded, and allocates only the first time.
type loop struct {
	got  compress.Received
	many []loop
}

func (l *loop) back(p compress.Payload) *compress.Received {
	switch p := p.(type) {
	case *compress.Many:
		if l.many == nil {
			l.many, l.got.Many = make([]loop, len(p.Of)), make([]compress.Received, len(p.Of))
		}
		for i, q := range p.Of {
			if q != nil {
				l.got.Many[i] = *l.many[i].back(q)
			}
		}
	case *compress.Split:
		return l.back(p.To[0])
	case *compress.Packed:
		l.got.Packed = append(l.got.Packed[:0], p.B)
	case *compress.Sparse:
		l.got.Sparse, l.got.Scale = append(l.got.Sparse[:0], *p), 1
	case *compress.Linear:
		l.got.Mean = p.X
	}
	return &l.got
}

// A step allocates nothing.
func TestStepAllocatesNothing(t *testing.T) {
	ctx := context.Background()
	for _, text := range []string{"onebit", "threshold", "terngrad", "terngrad:share_scale=true", "terngrad:exchange=twophase",
		"threshold:exchange=twophase", "onebit:exchange=twophase", "int8", "fp16"} {
		set := compress.Set{Parts: []compress.Part{compress.NewPart("a", 30), compress.NewPart("b", 20, 7)}, Size: 1, Dev: kernels.CPU()}
		c, s, v := fresh(t, text, set, compresstest.Gradients(rand.New(rand.NewPCG(1, 1)), 0, 1, set.Len())[0])
		var loops [3]loop
		require.Zero(t, testing.AllocsPerRun(5, func() {
			p, err := c.Start(ctx, s, v)
			for round := 0; p != nil && err == nil; round++ {
				p, err = c.Next(ctx, s, *loops[round].back(p), v)
			}
		}), text)
	}
}

// Of an entry that passes tau only its place and its sign travel; tau is agreed.
func TestThresholdSendsSigns(t *testing.T) {
	set := compress.Set{Parts: []compress.Part{compress.NewPart("w", 64)}, Size: 1, Dev: kernels.CPU()}
	g := make([]float32, 64)
	g[3], g[40], g[41] = 2.5, -7, 2
	_, p := offer(t, "threshold:tau=2", set, g)
	sparse := p.(*compress.Sparse)
	msg := compress.AppendSparse(nil, sparse, []uint32{3, 40}, []float32{2, -2}, 2)
	require.Len(t, msg, 3, "a count of 8 bits, a prefix bit, two gaps of 6 and 7 bits, two signs")
	idx, val := make([]uint32, 64), make([]float32, 64)
	k, _, err := compress.DecodeSparse(msg, sparse, idx, val, 2)
	require.NoError(t, err)
	require.Equal(t, []uint32{3, 40}, idx[:k])
	require.Equal(t, []float32{2, -2}, val[:k])
	_, p = offer(t, "threshold:tau=2,exchange=twophase", set, g)
	parcel := p.(*compress.Split).To[0].(*compress.Sparse)
	require.Equal(t, msg, compress.AppendSparse(nil, parcel, []uint32{3, 40}, []float32{2, -2}, 2), "nor does it to an owner")
	host, _ := kernels.Host(sparse.Idx)
	count, _ := kernels.Host(sparse.Len)
	require.Equal(t, idx[:k], host[:count[0]])
}

// What outruns tau is seen: "largest" is the largest magnitude in the residual.
func TestThresholdReportsTheLargest(t *testing.T) {
	c := compresstest.NewCluster(t, newMethod(t, "threshold:tau=0.5"), kernels.Lazy(), 1, 0, compress.NewPart("w", 4))
	g := [][]float32{{0.1, -2, 0.5, 0}}
	for step := range 5 {
		c.Step(g)
		require.InDelta(t, 1.5*float64(step+1), c.PartState(0, "w/largest")[0], 1e-6)
		require.InDelta(t, -1.5*float64(step+1), c.PartState(0, "w/residual")[1], 1e-6)
	}
}

// Columns of d0 and rows of the rest: what costs fewer scales is taken.
func TestOneBitGroups(t *testing.T) {
	for _, c := range []struct {
		group string
		shape []int
		want  int
	}{
		{"auto", []int{64, 3, 3, 3}, 8*27 + 216}, {"auto", []int{3, 64}, 8*3 + 24}, {"auto", []int{16, 16}, 8*16 + 32},
		{"row", []int{64, 27}, 8*64 + 216}, {"column", []int{3, 64}, 8*64 + 24}, {"tensor", []int{64, 27}, 8 + 216},
		{"auto", []int{1000}, 8 + 125}, {"column", []int{1000}, 8 + 125}, {"auto", []int{}, 8 + 1}, {"auto", []int{0, 5}, 0}, {"column", []int{3, 0}, 0},
	} {
		set := compress.Set{Parts: []compress.Part{compress.NewPart("w", c.shape...)}, Size: 1, Dev: kernels.CPU()}
		_, p := offer(t, "onebit:group="+c.group, set, nil)
		require.Equal(t, c.want, p.(*compress.Packed).B.Len(), "%s of %v", c.group, c.shape)
	}
}

// A cast rounds each rank's value and the mean, each to half an ulp: 2^-11 for fp16, 2^-8 for bf16 (and fp16's smallest step, 2^-24).
func TestCastsRound(t *testing.T) {
	const n, ranks = 500, 4
	g := compresstest.Gradients(rand.New(rand.NewPCG(4, 4)), 0, ranks, n)
	for text, ulp := range map[string]float64{"fp16": 0x1p-10, "bf16": 0x1p-7} {
		c := compresstest.NewCluster(t, newMethod(t, text), kernels.Lazy(), ranks, 0, compress.NewPart("w", n))
		means, _ := c.Step(g)
		var worst float64
		for i, got := range means[0] {
			var want, mass float64
			for r := range g {
				want += float64(g[r][i]) / ranks
				mass += math.Abs(float64(g[r][i])) / ranks
			}
			require.InDelta(t, want, got, ulp*mass*1.001+0x1p-24, "%s, element %d", text, i)
			worst = max(worst, math.Abs(want-float64(got))/mass)
		}
		require.Greater(t, worst, ulp/8, "%s rounds nothing", text)
	}
}
