// Package collectivetest is the suite that every collective.Group must pass.
package collectivetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/kernels"
)

// deadline ends a test that hangs.
const deadline = 20 * time.Second

var (
	sizes   = []int{1, 2, 3, 4, 7, 8}
	lengths = []int{0, 1, 7, 8, 9, 1000, 4097, 10007}
)

// Run runs the suite. start returns the groups of n ranks, connected; the suite closes them.
func Run(t *testing.T, start func(n int) []collective.Group) {
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			gs := start(n)
			defer closeAll(gs)
			for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
				t.Run("reduce/"+dev.Name(), func(t *testing.T) { reductions(t, gs, dev) })
			}
			t.Run("gather", func(t *testing.T) { gathers(t, gs) })
			t.Run("broadcast", func(t *testing.T) { broadcasts(t, gs) })
			t.Run("maxbyte", func(t *testing.T) { maxBytes(t, gs) })
			t.Run("barrier", func(t *testing.T) { barriers(t, gs) })
			t.Run("mixed", func(t *testing.T) { mixed(t, gs) })
		})
	}
	t.Run("long", func(t *testing.T) { long(t, start) })
	t.Run("cancel", func(t *testing.T) { cancel(t, start) })
	t.Run("abort", func(t *testing.T) {
		dies(t, start, func(g collective.Group) { g.Abort(errors.New("out of memory")) })
	})
	t.Run("leave", func(t *testing.T) { dies(t, start, func(g collective.Group) { g.Close() }) })
	t.Run("broadcast lengths differ", func(t *testing.T) { lengthsDiffer(t, start) })
}

func closeAll(gs []collective.Group) {
	for _, g := range gs {
		g.Close()
	}
}

// all runs f on every rank at once and returns the errors in rank order.
func all(ctx context.Context, gs []collective.Group, f func(ctx context.Context, g collective.Group) error) []error {
	ctx, stop := context.WithTimeout(ctx, deadline)
	defer stop()
	errs := make([]error, len(gs))
	var wg sync.WaitGroup
	for i, g := range gs {
		wg.Go(func() { errs[i] = f(ctx, g) })
	}
	wg.Wait()
	return errs
}

// must is all where nothing may fail.
func must(t *testing.T, gs []collective.Group, f func(ctx context.Context, g collective.Group) error) {
	t.Helper()
	if err := errors.Join(all(t.Context(), gs, f)...); err != nil {
		t.Fatal(err)
	}
}

type call struct {
	kind string // "all", "scatter" or "root"
	n    int
	r    collective.Reduction
	root int
	seed uint64
}

func (c call) String() string {
	return fmt.Sprintf("%s n=%d op=%d wire=%v root=%d", c.kind, c.n, c.r.Op, c.r.Wire, c.root)
}

// input is what rank contributes: values up to 2 in size, some tiny, some zero.
func (c call) input(rank int) []float32 {
	rng := rand.New(rand.NewPCG(c.seed, uint64(rank)))
	x := make([]float32, c.n)
	for i := range x {
		u := rng.Uint64()
		x[i] = float32(int32(u)) * 0x1p-30
		switch u >> 61 {
		case 0:
			x[i] = 0
		case 1:
			x[i] *= 1e-6
		}
	}
	return x
}

func (c call) run(ctx context.Context, g collective.Group, s kernels.Stream) ([]float32, error) {
	b, err := kernels.NewBuf[float32](s.Device(), c.n+2)
	if err != nil {
		return nil, err
	}
	defer b.Free()
	x := b.Slice(1, c.n+1) // not at the start of its memory, with a guard on both sides
	in := c.input(g.Rank())
	kernels.Write(s, b, append(append([]float32{guard}, in...), guard))
	switch c.kind {
	case "all":
		err = g.AllReduce(ctx, s, x, c.r)
	case "scatter":
		err = g.ReduceScatter(ctx, s, x, c.r)
	case "root":
		err = g.Reduce(ctx, s, x, c.r, c.root)
	}
	if err != nil {
		return nil, err
	}
	out := make([]float32, c.n+2)
	if err := kernels.Read(ctx, s, out, b); err != nil {
		return nil, err
	}
	if out[0] != guard || out[c.n+1] != guard {
		return nil, fmt.Errorf("%v: rank %d wrote outside x", c, g.Rank())
	}
	return out[1 : c.n+1], nil
}

const guard = 12345.5

// check compares got[rank] with a sum in float64.
func (c call) check(got [][]float32) error {
	size := len(got)
	in := make([][]float32, size)
	for r := range in {
		in[r] = c.input(r)
	}
	for r, x := range got {
		lo, hi := 0, c.n
		switch {
		case c.kind == "scatter":
			lo, hi = collective.Segment(c.n, size, r)
		case c.kind == "root" && r != c.root:
			continue
		case c.kind == "all" && r > 0:
			for i := range x {
				if math.Float32bits(x[i]) != math.Float32bits(got[0][i]) {
					return fmt.Errorf("%v: element %d: rank %d holds %x, rank 0 %x", c, i, r, math.Float32bits(x[i]), math.Float32bits(got[0][i]))
				}
			}
			continue
		}
		for i := lo; i < hi; i++ {
			want, tol := c.want(in, i)
			if d := math.Abs(float64(x[i]) - want); !(d <= tol) {
				return fmt.Errorf("%v: rank %d element %d of %d ranks: got %g, want %g +- %g", c, r, i, size, x[i], want, tol)
			}
		}
	}
	return nil
}

// want is element i of the exact result, and how far rounding may lead from it. N contributions meet in N-1 float32 additions, after
// N scalings for a mean, and are rounded to the wire at most N times; a rounding to binary16 is off by up to 2^-25 where subnormal.
func (c call) want(in [][]float32, i int) (want, tol float64) {
	n := float64(len(in))
	var unit, tiny float64
	switch c.r.Wire {
	case kernels.F16:
		unit, tiny = 0x1p-11, 0x1p-25
	case kernels.BF16:
		unit = 0x1p-8
	}
	if c.r.Op == collective.Max {
		// Rounding is monotone: what comes out is the largest, rounded once.
		want = float64(in[0][i])
		for _, x := range in {
			want = max(want, float64(x[i]))
		}
		return want, math.Abs(want)*unit + tiny
	}
	abs := 0.0
	for _, x := range in {
		want += float64(x[i])
		abs += math.Abs(float64(x[i]))
	}
	if c.r.Op == collective.Mean {
		want, abs = want/n, abs/n
	}
	grow := 1.0
	for range in {
		grow *= (1 + unit) * (1 + 0x1p-24) * (1 + 0x1p-24)
	}
	return want, abs*(grow-1) + 2*n*tiny
}

func reductions(t *testing.T, gs []collective.Group, dev kernels.Device) {
	seed := uint64(0)
	for _, n := range lengths {
		for _, r := range []collective.Reduction{
			{Op: collective.Sum}, {Op: collective.Mean}, {Op: collective.Max},
			{Op: collective.Sum, Wire: kernels.BF16}, {Op: collective.Mean, Wire: kernels.F16}, {Op: collective.Max, Wire: kernels.F16},
		} {
			for _, kind := range []string{"all", "scatter", "root"} {
				seed++
				reduction(t, gs, dev, call{kind, n, r, int(seed) % len(gs), seed})
			}
		}
	}
}

func reduction(t *testing.T, gs []collective.Group, dev kernels.Device, c call) {
	t.Helper()
	got := make([][]float32, len(gs))
	must(t, gs, func(ctx context.Context, g collective.Group) error {
		s, err := dev.NewStream()
		if err != nil {
			return err
		}
		got[g.Rank()], err = c.run(ctx, g, s)
		return err
	})
	if err := c.check(got); err != nil {
		t.Fatal(err)
	}
}

// long covers messages of many chunks.
func long(t *testing.T, start func(n int) []collective.Group) {
	for _, n := range []int{2, 3} {
		gs := start(n)
		for seed, r := range []collective.Reduction{{}, {Op: collective.Mean, Wire: kernels.BF16}} {
			for _, kind := range []string{"all", "scatter", "root"} {
				reduction(t, gs, kernels.CPU(), call{kind, 1_400_001 / n, r, n - 1, uint64(seed)})
			}
		}
		closeAll(gs)
	}
}

// message is what rank from says to rank to in a round: any length, often none.
func message(round uint64, from, to int) []byte {
	rng := rand.New(rand.NewPCG(round, uint64(from)<<32|uint64(to)))
	return random(rng, []int{0, 1, rng.IntN(100), rng.IntN(100_000)}[rng.IntN(4)])
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

func gather(ctx context.Context, g collective.Group, round uint64) error {
	got, err := g.AllGather(ctx, message(round, g.Rank(), 0))
	if err != nil {
		return err
	}
	return sameMessages(g, got, func(r int) []byte { return message(round, r, 0) })
}

func allToAll(ctx context.Context, g collective.Group, round uint64) error {
	to := make([][]byte, g.Size())
	for r := range to {
		to[r] = message(round, g.Rank(), r)
	}
	got, err := g.AllToAll(ctx, to)
	if err != nil {
		return err
	}
	return sameMessages(g, got, func(r int) []byte { return message(round, r, g.Rank()) })
}

func sameMessages(g collective.Group, got [][]byte, want func(r int) []byte) error {
	if len(got) != g.Size() {
		return fmt.Errorf("rank %d got %d messages from %d ranks", g.Rank(), len(got), g.Size())
	}
	for r, b := range got {
		if !bytes.Equal(b, want(r)) {
			return fmt.Errorf("rank %d got %d bytes from rank %d that differ from the %d it sent", g.Rank(), len(b), r, len(want(r)))
		}
	}
	return nil
}

func gathers(t *testing.T, gs []collective.Group) {
	for round := range uint64(10) {
		must(t, gs, func(ctx context.Context, g collective.Group) error {
			return errors.Join(gather(ctx, g, round), allToAll(ctx, g, round))
		})
	}
	must(t, gs, func(ctx context.Context, g collective.Group) error {
		got, err := g.AllGather(ctx, nil)
		return errors.Join(err, sameMessages(g, got, func(int) []byte { return nil }))
	})
}

func broadcast(ctx context.Context, g collective.Group, round uint64, n, root int) error {
	want := random(rand.New(rand.NewPCG(round, uint64(n))), n)
	b := make([]byte, n)
	if g.Rank() == root {
		copy(b, want)
	}
	if err := g.Broadcast(ctx, b, root); err != nil {
		return err
	}
	if !bytes.Equal(b, want) {
		return fmt.Errorf("rank %d: broadcast of %d bytes from %d differs", g.Rank(), n, root)
	}
	return nil
}

func broadcasts(t *testing.T, gs []collective.Group) {
	for root := range gs {
		for i, n := range append(lengths, 1<<18, 600_001) {
			if n > 10_007 && root > 0 {
				continue
			}
			must(t, gs, func(ctx context.Context, g collective.Group) error { return broadcast(ctx, g, uint64(i), n, root) })
		}
	}
}

func maxByte(ctx context.Context, g collective.Group, round uint64) error {
	var want byte
	vote := func(r int) byte { return byte(rand.New(rand.NewPCG(round, uint64(r))).IntN(256)) }
	for r := range g.Size() {
		want = max(want, vote(r))
	}
	got, err := g.MaxByte(ctx, vote(g.Rank()))
	if err == nil && got != want {
		err = fmt.Errorf("rank %d: MaxByte is %d, want %d", g.Rank(), got, want)
	}
	return err
}

func maxBytes(t *testing.T, gs []collective.Group) {
	for round := range uint64(20) {
		must(t, gs, func(ctx context.Context, g collective.Group) error { return maxByte(ctx, g, round) })
	}
	for loud := range gs { // one rank alone holds the flag
		must(t, gs, func(ctx context.Context, g collective.Group) error {
			b := byte(0)
			if g.Rank() == loud {
				b = 1
			}
			if got, err := g.MaxByte(ctx, b); err != nil || got != 1 {
				return fmt.Errorf("rank %d: MaxByte is %d with a 1 on rank %d (%v)", g.Rank(), got, loud, err)
			}
			return nil
		})
	}
}

func barriers(t *testing.T, gs []collective.Group) {
	var entered atomic.Int64
	must(t, gs, func(ctx context.Context, g collective.Group) error {
		for round := range 20 {
			if (round+g.Rank())%3 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			entered.Add(1)
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			if n := entered.Load(); n < int64(len(gs)*(round+1)) {
				return fmt.Errorf("rank %d left barrier %d when %d had entered", g.Rank(), round, n)
			}
		}
		return nil
	})
}

// mixed issues every kind of call in random order without a pause, so that messages of neighbouring calls are under way at once.
func mixed(t *testing.T, gs []collective.Group) {
	const calls = 60
	results := make([][][]float32, calls)
	for i := range results {
		results[i] = make([][]float32, len(gs))
	}
	reduced := make([]call, calls)
	must(t, gs, func(ctx context.Context, g collective.Group) error {
		s, err := kernels.CPU().NewStream()
		if err != nil {
			return err
		}
		rng := rand.New(rand.NewPCG(7, uint64(len(gs)))) // the same choices on every rank
		for i := range uint64(calls) {
			kind, n, root, op, wire := rng.IntN(7), rng.IntN(5000), rng.IntN(g.Size()), rng.IntN(3), rng.IntN(3)
			var err error
			switch kind {
			case 0, 1, 2:
				c := call{[]string{"all", "scatter", "root"}[kind], n,
					collective.Reduction{Op: collective.Op(op), Wire: kernels.DType(wire)}, root, i}
				if g.Rank() == 0 {
					reduced[i] = c
				}
				results[i][g.Rank()], err = c.run(ctx, g, s)
			case 3:
				err = gather(ctx, g, i)
			case 4:
				err = allToAll(ctx, g, i)
			case 5:
				err = broadcast(ctx, g, i, n, root)
			case 6:
				err = maxByte(ctx, g, i)
			}
			if err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		return nil
	})
	for i, c := range reduced {
		if c.kind != "" {
			if err := c.check(results[i]); err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
		}
	}
}

// reduceTimes issues n reductions, or stops at the first that fails.
func reduceTimes(ctx context.Context, g collective.Group, n int) error {
	s, err := kernels.CPU().NewStream()
	if err != nil {
		return err
	}
	x, err := kernels.NewBuf[float32](s.Device(), 50_000)
	if err != nil {
		return err
	}
	for range n {
		if err := g.AllReduce(ctx, s, x, collective.Reduction{}); err != nil {
			return err
		}
	}
	return nil
}

const forever = math.MaxInt

// cancel ends the context of one rank; all must return, and stay failed.
func cancel(t *testing.T, start func(n int) []collective.Group) {
	gs := start(3)
	defer closeAll(gs)
	short, stop := context.WithCancel(t.Context())
	defer stop()
	time.AfterFunc(10*time.Millisecond, stop)
	errs := all(t.Context(), gs, func(ctx context.Context, g collective.Group) error {
		if g.Rank() == 1 {
			return reduceTimes(short, g, forever)
		}
		return reduceTimes(ctx, g, forever)
	})
	if !errors.Is(errs[1], context.Canceled) {
		t.Errorf("rank 1 was cancelled and returned %v", errs[1])
	}
	for r, err := range errs {
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("rank %d hung: %v", r, err)
		}
		if err := gs[r].Barrier(t.Context()); err == nil {
			t.Errorf("rank %d works again after it has failed", r)
		}
	}
}

// dies lets rank 2 of 4 die in the midst of calls. The others must return errors that name it.
func dies(t *testing.T, start func(n int) []collective.Group, die func(collective.Group)) {
	for after := range 4 {
		gs := start(4)
		errs := all(t.Context(), gs, func(ctx context.Context, g collective.Group) error {
			if g.Rank() != 2 {
				return reduceTimes(ctx, g, forever)
			}
			if err := reduceTimes(ctx, g, after); err != nil {
				return err
			}
			die(g)
			return nil
		})
		for r, err := range errs {
			switch {
			case r == 2:
				if err != nil {
					t.Error(err)
				}
			case err == nil || errors.Is(err, context.DeadlineExceeded):
				t.Errorf("rank %d after rank 2 died: %v", r, err)
			case !strings.Contains(err.Error(), "rank 2"):
				t.Errorf("rank %d does not name rank 2: %v", r, err)
			}
		}
		closeAll(gs)
	}
}

func lengthsDiffer(t *testing.T, start func(n int) []collective.Group) {
	for _, n := range []int{0, 99, 101, 1 << 18, 1 << 20} {
		gs := start(3)
		errs := all(t.Context(), gs, func(ctx context.Context, g collective.Group) error {
			b := []byte(strings.Repeat("x", 100))
			if g.Rank() == 1 {
				b = []byte(strings.Repeat("x", n))
			}
			return g.Broadcast(ctx, b, 0)
		})
		if errs[1] == nil || errors.Is(errs[1], context.DeadlineExceeded) {
			t.Errorf("rank 1 took 100 bytes for %d: %v", n, errs[1])
		}
		closeAll(gs)
	}
}
