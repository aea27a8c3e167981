package ratio

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/eval/shapes"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport"
	"github.com/gradpress/gradpress/transport/inproc"
)

// little has a tensor whose ring segments are longer than a chunk, some of odd sizes, and small ones.
var little = shapes.Model{Name: "little", Tensors: []shapes.Tensor{
	{Name: "conv", Shape: []int{16, 3, 3, 3}}, {Name: "bn", Shape: []int{16}}, {Name: "fc", Shape: []int{1001, 301}}, {Name: "bias", Shape: []int{1001}},
	{Name: "out", Shape: []int{7, 1001}}, {Name: "tiny", Shape: []int{3, 5}},
}}

func parse(t testing.TB, text string) compress.Method {
	m, err := all.Methods().Parse(text)
	require.NoError(t, err)
	return m
}

// world runs as many steps as step does on ranks that meet over inproc, and returns what each sent and offered in the last. Where alike is
// set all ranks have the same gradients.
func world(t *testing.T, m compress.Method, size int, alike bool) (sent, payload []int64) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sent, payload = make([]int64, size), make([]int64, size)
	data, control := inproc.New(size), inproc.New(size)
	var g errgroup.Group
	for r := range size {
		g.Go(func() error {
			d, c := collective.New(data[r]), collective.New(control[r])
			engine, err := hooks.Compressed(ctx, hooks.Config{Dev: kernels.CPU(), Data: d, Control: c, Seed: 1}, m)
			if err != nil {
				return err
			}
			defer engine.Close()
			params := make([]ddp.Param, len(little.Tensors))
			for i, x := range little.Tensors {
				params[i] = ddp.Param(x)
			}
			reducer, err := ddp.New(params, engine, ddp.Config{Dev: kernels.CPU()})
			if err != nil {
				return err
			}
			src := newSource(1)
			if !alike {
				src.seed += uint64(r) << 32
			}
			for i := range steps {
				payload[r] = -engine.Stats().PayloadBytes
				sent[r] = -d.Traffic().SentBytes - c.Traffic().SentBytes
				for j := len(params) - 1; j >= 0; j-- {
					x, _ := kernels.Host(reducer.Grad(j))
					src.fill(x, params[j].Name, i)
					if err := reducer.Ready(j); err != nil {
						return err
					}
				}
				if err := reducer.Wait(ctx); err != nil {
					return err
				}
				payload[r] += engine.Stats().PayloadBytes
				sent[r] += d.Traffic().SentBytes + c.Traffic().SentBytes
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	return sent, payload
}

var methods = []string{"dense", "dgc", "dgc:values=int8", "dgc:values=sign,small=0.05", "topk:ratio=0.3", "dgc:ratio=0.01,small=0.1,exchange=twophase",
	"dgc:ratio=0.01,values=int8,exchange=auto", "powersgd:rank=2",
	"onebit:exchange=twophase", "int8:exchange=twophase", "threshold:exchange=twophase"}

// What one rank in front of a mirror sends and offers is what ranks with the same gradients send over a transport, to the byte. With gradients
// of their own they send other codes of as many indices: one takes 11 bits, give or take 2, of at least 12 for an entry, so that 300 and
// more of them are within 2/12/sqrt(300), which is 1 %, in one of three cases; 4 % is four times that.
func TestMirrorCountsWhatTransportCounts(t *testing.T) {
	for _, text := range methods {
		for _, size := range []int{1, 4, 7} {
			t.Run(fmt.Sprintf("%s/ranks=%d", text, size), func(t *testing.T) {
				m := parse(t, text)
				u, err := step(t.Context(), little.Tensors, m, size, newSource(1))
				require.NoError(t, err)
				sent, payload := world(t, m, size, true)
				require.Equal(t, sent[size-1], u.sent)
				require.Equal(t, payload[size-1], u.payload)
				if m.Name == "dense" {
					require.Equal(t, u.dense, u.sent)
				}
				if m.Name != "dgc" { // whose parcels differ from rank to rank
					require.InDelta(t, slices.Max(sent), u.sent, 16, "no rank sends more, but for an element in each of a few calls")
				}
				if size == 4 && m.Name != "threshold" { // whose owners wait for more where few ranks send
					sent, _ = world(t, m, size, false)
					require.InEpsilon(t, slices.Max(sent), u.sent, 0.04)
				}
			})
		}
	}
}

// Ranks with the same gradients draw other ternaries of them, so that their sums have more to tell than one rank's. The mirror has other entries of the
// tensor for that, whose code is as long within some per cent.
func TestMirrorTellsRanksApart(t *testing.T) {
	for _, size := range []int{1, 4, 7} {
		m := parse(t, "terngrad:exchange=twophase")
		u, err := step(t.Context(), little.Tensors, m, size, newSource(1))
		require.NoError(t, err)
		sent, payload := world(t, m, size, true)
		require.InEpsilon(t, payload[size-1], u.payload, 0.03)
		if size > 1 {
			require.InEpsilon(t, sent[size-1], u.sent, 0.03)
		}
	}
}

// The collectives that no hook issues at present are counted as well.
func TestMirrorCountsEveryCollective(t *testing.T) {
	calls := map[string]func(ctx context.Context, g collective.Group, s kernels.Stream, x kernels.Buf[float32]) error{
		"reduce-scatter": func(ctx context.Context, g collective.Group, s kernels.Stream, x kernels.Buf[float32]) error {
			return g.ReduceScatter(ctx, s, x, collective.Reduction{})
		},
		"reduce": func(ctx context.Context, g collective.Group, s kernels.Stream, x kernels.Buf[float32]) error {
			return g.Reduce(ctx, s, x, collective.Reduction{Wire: kernels.F16}, 0)
		},
		"broadcast": func(ctx context.Context, g collective.Group, _ kernels.Stream, _ kernels.Buf[float32]) error {
			return g.Broadcast(ctx, make([]byte, 300_000), g.Size()/2)
		},
		"all-to-all": func(ctx context.Context, g collective.Group, _ kernels.Stream, _ kernels.Buf[float32]) error {
			to := make([][]byte, g.Size())
			for r := range to {
				to[r] = make([]byte, 100*r)
			}
			_, err := g.AllToAll(ctx, to)
			return err
		},
		"barrier": func(ctx context.Context, g collective.Group, _ kernels.Stream, _ kernels.Buf[float32]) error {
			return g.Barrier(ctx)
		},
	}
	for name, call := range calls {
		for _, size := range []int{1, 2, 5} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			run := func(g collective.Group) error {
				s, err := kernels.CPU().NewStream()
				require.NoError(t, err)
				x, err := kernels.NewBuf[float32](kernels.CPU(), 700_001)
				require.NoError(t, err)
				return call(ctx, g, s, x)
			}
			var all errgroup.Group
			meshes := inproc.New(size)
			for _, m := range meshes {
				all.Go(func() error { return run(collective.New(m)) })
			}
			require.NoError(t, all.Wait())
			m := &mirror{size: size}
			require.NoError(t, run(m))
			got, want := m.Traffic(), meshes[m.Rank()].Traffic()
			require.Equal(t, transport.Traffic{SentMessages: want.SentMessages, SentBytes: want.SentBytes}, got, "%s of %d", name, size)
		}
	}
}

// The figures that this project promises, on AlexNet without its two largest tensors, and with all small tensors pooled.
func TestPromisedRatios(t *testing.T) {
	model := shapes.AlexNet()
	model.Tensors = slices.DeleteFunc(model.Tensors, func(x shapes.Tensor) bool { return x.Len() > 10_000_000 })
	for text, want := range map[string]float64{"dgc": 720, "dgc:values=int8": 1600, "dgc:values=sign": 2400} {
		row, err := Measure(t.Context(), Config{Model: model, Method: parse(t, text), Seed: 1})
		require.NoError(t, err)
		require.Greater(t, *row.CompressedRatio, want, text)
		require.Less(t, *row.IndexBits, 1.02**row.IndexFloor, text)
		require.Greater(t, *row.IndexBits, *row.IndexFloor, "%s: no code is shorter than that", text)
	}
	for _, model := range []shapes.Model{model, shapes.ResNet110()} {
		row, err := Measure(t.Context(), Config{Model: model, Method: parse(t, "dgc:values=int8,small=0.015"), Seed: 1})
		require.NoError(t, err)
		require.Greater(t, row.PayloadRatio, 1000., model.Name)
	}
}

func TestRow(t *testing.T) {
	by := parse(t, "dgc:exchange=twophase")
	row, err := Measure(t.Context(), Config{Model: little, Method: parse(t, "dgc"), TwoPhase: &by, Seed: 3})
	require.NoError(t, err)
	served, small := float64(16*27+1001*301+7*1001), float64(16+1001+15)
	require.InDelta(t, 4*small, float64(row.PayloadBytes) - 4*served / *row.CompressedRatio, 1e-6, "small tensors are dense")
	require.InDelta(t, 4*(served+small)/float64(row.PayloadBytes), row.PayloadRatio, 1e-9)
	// With a gather, N ranks send 2(N-1)/N of the gradient against N-1 payloads; what is dense of those is reduced, not gathered.
	for i, wire := range []float64{row.Wire4, row.Wire16, row.Wire64} {
		n := float64(Ranks[i])
		sparse := float64(row.PayloadBytes) - 4*small
		require.InEpsilon(t, 2/n*4*(served+small)/(sparse+2/n*4*small), wire, 0.05, "headers and flags are left out")
	}
	pooled, err := Measure(t.Context(), Config{Model: little, Method: parse(t, "dgc:small=0.05"), Seed: 3})
	require.NoError(t, err)
	require.InEpsilon(t, *row.CompressedRatio, *pooled.CompressedRatio, 0.005, "how the small ones travel is not their business, but for a frame")

	direct, err := Measure(t.Context(), Config{Model: little, Method: by, Seed: 3})
	require.NoError(t, err)
	require.Equal(t, [3]float64{direct.Wire4, direct.Wire16, direct.Wire64}, [3]float64{*row.TwoPhase4, *row.TwoPhase16, *row.TwoPhase64})
	require.Nil(t, direct.TwoPhase4)
	require.Nil(t, direct.PaperRatio)

	again, err := Measure(t.Context(), Config{Model: little, Method: parse(t, "dgc"), TwoPhase: &by, Seed: 3})
	require.NoError(t, err)
	again.Seconds = row.Seconds
	require.Equal(t, row, again, "a seed decides everything")

	dense, err := Measure(t.Context(), Config{Model: little, Method: parse(t, "dense"), Seed: 3})
	require.NoError(t, err)
	require.Equal(t, [4]float64{1, 1, 1, 1}, [4]float64{dense.PayloadRatio, dense.Wire4, dense.Wire16, dense.Wire64})
	require.Nil(t, dense.IndexBits)

	large := shapes.Model{Name: "large", Tensors: little.Tensors[2:3]}
	for _, text := range []string{"topk", "topk:small=0.1"} {
		row, err := Measure(t.Context(), Config{Model: large, Method: parse(t, text), Seed: 3})
		require.NoError(t, err)
		require.Equal(t, row.PayloadRatio, *row.CompressedRatio, "%s of a model without small tensors", text)
	}

	var b bytes.Buffer
	require.NoError(t, Text(&b, []*Row{row, dense}))
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, []string{"little", "dgc", "dense", "-/-/-"}, []string{strings.Fields(lines[1])[0], strings.Fields(lines[1])[2], strings.Fields(lines[2])[2], strings.Fields(lines[2])[9]})
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Measure(ctx, Config{Model: little, Method: parse(t, "dgc"), Seed: 1})
	require.ErrorIs(t, err, context.Canceled)
}

// Every element is drawn, at another value each step, and a thousandth of them holds much more than its share.
func TestGradients(t *testing.T) {
	src := newSource(7)
	x, y := make([]float32, 100_001), make([]float32, 100_001)
	src.fill(x, "a", 0)
	newSource(7).fill(y, "a", 0)
	require.Equal(t, x, y)
	require.NotContains(t, x, float32(0))
	for _, other := range []func(){func() { src.fill(y, "a", 1) }, func() { src.fill(y, "b", 0) }, func() { newSource(8).fill(y, "a", 0) }} {
		other()
		same := 0
		for i := range x {
			if x[i] == y[i] {
				same++
			}
		}
		require.Zero(t, same)
	}
	slices.SortFunc(x, func(a, b float32) int { return int(math.Copysign(1, math.Abs(float64(b))-math.Abs(float64(a)))) })
	var top, whole float64
	for i, v := range x {
		if whole += float64(v) * float64(v); i < 100 {
			top = whole
		}
	}
	require.Greater(t, top/whole, 0.1, "of normal gradients it would be 0.012")
}

func BenchmarkMeasure(b *testing.B) {
	m, by := parse(b, "dgc"), parse(b, "dgc:exchange=twophase")
	for _, model := range shapes.All() {
		b.Run(model.Name, func(b *testing.B) {
			b.SetBytes(int64(4 * model.Len()))
			for b.Loop() {
				row, err := Measure(b.Context(), Config{Model: model, Method: m, TwoPhase: &by, Seed: 1})
				require.NoError(b, err)
				b.ReportMetric(row.PayloadRatio, "ratio")
			}
		})
	}
}
