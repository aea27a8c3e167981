package ddp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/kernels"
)

// recorder is a hook that notes the order of launches and finishes buckets itself, in order or later.
type recorder struct {
	classes  []Class
	launched []int
	err      error
	hold     bool
	held     []*Bucket
}

func (h *recorder) Plan(p []Param) ([]Class, error) {
	if h.classes == nil {
		return make([]Class, len(p)), nil
	}
	return h.classes, nil
}
func (h *recorder) Bind([]Param, []*Bucket) error { return nil }
func (h *recorder) Reduce(b *Bucket) {
	h.launched = append(h.launched, b.Index)
	if h.hold {
		h.held = append(h.held, b)
		return
	}
	b.Finish(h.err)
}

func params(sizes ...int) []Param {
	var p []Param
	for i, n := range sizes {
		p = append(p, Param{Name: fmt.Sprintf("p%d", i), Shape: []int{n}})
	}
	return p
}

func layout(r *Reducer) (all [][]int) {
	for _, b := range r.Buckets() {
		var members []int
		for _, s := range b.Spans {
			members = append(members, s.Params...)
		}
		all = append(all, members)
	}
	return all
}

func TestLayout(t *testing.T) {
	for name, c := range map[string]struct {
		sizes   []int
		classes []Class
		bytes   int
		want    [][]int
	}{
		"reverse order, one bucket": {[]int{1, 2, 3}, nil, 1000, [][]int{{2, 1, 0}}},
		"cap":                       {[]int{4, 4, 4, 4}, nil, 32, [][]int{{3, 2}, {1, 0}}},
		"larger than the cap":       {[]int{1, 100, 1}, nil, 8, [][]int{{2}, {1}, {0}}},
		"empty tensors":             {[]int{0, 0}, nil, 4, [][]int{{1, 0}}},
		"no parameters":             {nil, nil, 4, nil},
		"classes lie together":      {[]int{1, 2, 3, 4}, []Class{{"a", false}, {"b", false}, {"a", false}, {"b", false}}, 1000, [][]int{{3, 1, 2, 0}}},
		"a pool has its own bucket, as late as its last member": {[]int{4, 1, 4, 1, 4}, []Class{{"x", false}, {"pool", true}, {"x", false}, {"pool", true}, {"x", false}}, 16,
			[][]int{{4}, {2}, {3, 1}, {0}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := params(c.sizes...)
			r, err := New(p, &recorder{classes: c.classes}, Config{Dev: kernels.CPU(), BucketBytes: c.bytes})
			require.NoError(t, err)
			require.Equal(t, c.want, layout(r))
			for i, n := range c.sizes {
				require.Equal(t, n, r.Grad(i).Len())
			}
			for _, b := range r.Buckets() { // spans cover the bucket end to end, and no two parameters share memory
				at := 0
				for _, s := range b.Spans {
					require.Equal(t, at, s.Lo)
					for _, i := range s.Params {
						require.True(t, r.Grad(i).Same(b.Grad.Slice(at, at+c.sizes[i])))
						at += c.sizes[i]
					}
					require.Equal(t, at, s.Hi)
				}
				require.Equal(t, b.Grad.Len(), at)
			}
		})
	}
}

func TestBadParameters(t *testing.T) {
	_, err := New([]Param{{Name: "a"}, {Name: "a"}}, &recorder{}, Config{Dev: kernels.CPU()})
	require.ErrorContains(t, err, `"a"`)
	_, err = New([]Param{{Name: ""}}, &recorder{}, Config{Dev: kernels.CPU()})
	require.Error(t, err)
	_, err = New(params(1), &recorder{}, Config{Dev: kernels.CPU(), BucketBytes: -1})
	require.ErrorContains(t, err, "-1")
}

// Whatever order gradients come in, buckets are launched in order, each once, and none before it is complete.
func TestLaunchOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		n := 1 + rng.IntN(12)
		sizes := make([]int, n)
		for i := range sizes {
			sizes[i] = rng.IntN(20)
		}
		h := &recorder{}
		r, err := New(params(sizes...), h, Config{Dev: kernels.CPU(), BucketBytes: 4 * (1 + rng.IntN(40))})
		require.NoError(t, err)
		for range 3 {
			h.launched = nil
			done := map[int]bool{}
			for _, i := range rng.Perm(n) {
				require.NoError(t, r.Ready(i))
				done[i] = true
				for b, launched := range h.launched {
					require.Equal(t, b, launched)
					for _, m := range layout(r)[b] {
						require.True(t, done[m], "bucket %d left before parameter %d was ready", b, m)
					}
				}
			}
			require.Len(t, h.launched, len(r.Buckets()), "a complete bucket must not wait")
			require.NoError(t, r.Wait(context.Background()))
		}
	}
}

func TestReadyTwiceAndNever(t *testing.T) {
	r, err := New(params(1, 1), &recorder{}, Config{Dev: kernels.CPU()})
	require.NoError(t, err)
	require.NoError(t, r.Ready(1))
	require.ErrorContains(t, r.Ready(1), `"p1" is ready for the second time`)
	require.ErrorContains(t, r.Wait(context.Background()), `"p1"`, "a dead reducer repeats its error")

	r, err = New(params(1, 1, 1), &recorder{}, Config{Dev: kernels.CPU()})
	require.NoError(t, err)
	require.NoError(t, r.Ready(2))
	require.ErrorContains(t, r.Wait(context.Background()), `"p0" (2 of 3`)
	require.Panics(t, func() {
		r, _ := New(params(1), &recorder{}, Config{Dev: kernels.CPU()})
		_ = r.Ready(1)
	})
}

func TestNoSync(t *testing.T) {
	h := &recorder{}
	r, err := New(params(1, 1), h, Config{Dev: kernels.CPU()})
	require.NoError(t, err)
	broken := errors.New("broken")
	require.ErrorIs(t, r.NoSync(func() error {
		for range 3 {
			require.NoError(t, r.Ready(1))
			require.NoError(t, r.Ready(0))
		}
		return broken
	}), broken)
	require.Empty(t, h.launched)
	require.NoError(t, r.Ready(0))
	require.NoError(t, r.Ready(1))
	require.NoError(t, r.Wait(context.Background()))
	require.Equal(t, []int{0}, h.launched)
}

func TestWaitReportsHookAndContext(t *testing.T) {
	broken := errors.New("broken")
	r, err := New(params(1), &recorder{err: broken}, Config{Dev: kernels.CPU()})
	require.NoError(t, err)
	require.NoError(t, r.Ready(0))
	require.ErrorIs(t, r.Wait(context.Background()), broken)
	require.ErrorIs(t, r.Ready(0), broken)

	r, err = New(params(1), &recorder{hold: true}, Config{Dev: kernels.CPU()})
	require.NoError(t, err)
	require.NoError(t, r.Ready(0))
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Wait(ctx), context.DeadlineExceeded)
}

func BenchmarkReducer161(b *testing.B) {
	sizes := make([]int, 161)
	for i := range sizes {
		sizes[i] = 10
	}
	r, err := New(params(sizes...), &recorder{}, Config{Dev: kernels.CPU()})
	require.NoError(b, err)
	r.hook = finisher{}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		for i := len(sizes) - 1; i >= 0; i-- {
			if err := r.Ready(i); err != nil {
				b.Fatal(err)
			}
		}
		if err := r.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

type finisher struct{ Hook }

func (finisher) Reduce(b *Bucket) { b.Finish(nil) }
