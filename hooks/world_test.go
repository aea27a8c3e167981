package hooks_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport/inproc"
)

// world is N ranks with a reducer each.
type world struct {
	t       testing.TB
	params  []ddp.Param
	ranks   []*ddp.Reducer
	engines []*hooks.Engine
	streams []kernels.Stream
}

type hookMaker func(context.Context, hooks.Config) (*hooks.Engine, error)

func method(t testing.TB, text string) compress.Method {
	m, err := all.Methods().Parse(text)
	require.NoError(t, err)
	return m
}

func compressed(t testing.TB, text string) hookMaker {
	m := method(t, text)
	return func(ctx context.Context, cfg hooks.Config) (*hooks.Engine, error) {
		return hooks.Compressed(ctx, cfg, m)
	}
}

func newWorld(t testing.TB, size int, dev kernels.Device, bucketBytes int, params []ddp.Param, mk hookMaker, wrap func(rank int, g collective.Group) collective.Group) *world {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, params: params}
	data, control := inproc.New(size), inproc.New(size)
	for r := range size {
		cfg := hooks.Config{Dev: dev, Data: collective.New(data[r]), Control: collective.New(control[r]), Seed: 42}
		if wrap != nil {
			cfg.Data = wrap(r, cfg.Data)
		}
		e, err := mk(ctx, cfg)
		require.NoError(t, err)
		red, err := ddp.New(params, e, ddp.Config{Dev: dev, BucketBytes: bucketBytes})
		require.NoError(t, err)
		s, err := dev.NewStream()
		require.NoError(t, err)
		w.ranks, w.engines, w.streams = append(w.ranks, red), append(w.engines, e), append(w.streams, s)
		t.Cleanup(e.Close)
	}
	return w
}

// step puts every rank's gradients in (laid out in parameter order), marks them ready in reverse order and returns what came.
func (w *world) step(grads [][]float32) ([][]float32, []error) {
	out, errs := make([][]float32, len(w.ranks)), make([]error, len(w.ranks))
	var wg sync.WaitGroup
	for r := range w.ranks {
		wg.Go(func() { out[r], errs[r] = w.rankStep(r, grads[r]) })
	}
	wg.Wait()
	return out, errs
}

func (w *world) rankStep(r int, g []float32) ([]float32, error) {
	ctx := context.Background()
	red, s := w.ranks[r], w.streams[r]
	at := len(g)
	for i := len(w.params) - 1; i >= 0; i-- {
		n := w.params[i].Len()
		kernels.Write(s, red.Grad(i), g[at-n:at])
		if err := s.Sync(ctx); err != nil {
			return nil, err
		}
		at -= n
		if err := red.Ready(i); err != nil {
			return nil, err
		}
	}
	if err := red.Wait(ctx); err != nil {
		return nil, err
	}
	var out []float32
	for i := range w.params {
		x := make([]float32, w.params[i].Len())
		if err := kernels.Read(ctx, s, x, red.Grad(i)); err != nil {
			return nil, err
		}
		out = append(out, x...)
	}
	return out, nil
}

func (w *world) mustStep(grads [][]float32) [][]float32 {
	w.t.Helper()
	out, errs := w.step(grads)
	for _, err := range errs {
		require.NoError(w.t, err)
	}
	return out
}

func draw(seed uint64, ranks, n int) [][]float32 {
	rng := rand.New(rand.NewPCG(seed, 9))
	g := make([][]float32, ranks)
	for r := range g {
		g[r] = make([]float32, n)
		for i := range g[r] {
			x := float32(rng.NormFloat64())
			g[r][i] = x * x * x
		}
	}
	return g
}

func sameBits(t *testing.T, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("element %d: want %v, got %v", i, want[i], got[i])
		}
	}
}

var model = []ddp.Param{
	{Name: "conv1", Shape: []int{8, 3, 3, 3}}, {Name: "norm1", Shape: []int{8}}, {Name: "conv2", Shape: []int{16, 8, 3, 3}},
	{Name: "norm2", Shape: []int{16}}, {Name: "tiny", Shape: []int{2, 3}}, {Name: "linear", Shape: []int{40, 64}}, {Name: "bias", Shape: []int{40}},
}

func modelLen() int {
	n := 0
	for _, p := range model {
		n += p.Len()
	}
	return n
}
