package kernels

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

const guard = 9 // elements around a window that must survive

// each runs f for every device, length and offset, in Go alone and, where there is any, with assembly.
func each(t *testing.T, f func(t *testing.T, e *env)) {
	eachCode(t, func(t *testing.T) { eachDevice(t, f) })
}

func eachCode(t *testing.T, f func(t *testing.T)) {
	defer func(was bool) { avx2 = was }(avx2)
	for _, on := range slices.Compact([]bool{false, avx2}) {
		avx2 = on
		t.Run(fmt.Sprintf("avx2=%v", on), f)
	}
}

func eachDevice(t *testing.T, f func(t *testing.T, e *env)) {
	for _, dev := range []Device{CPU(), Lazy()} {
		for _, n := range []int{0, 1, 7, 8, 9, 1000, 4097} {
			for _, off := range []int{0, 1, 3} {
				t.Run(fmt.Sprintf("%s/n=%d/off=%d", dev.Name(), n, off), func(t *testing.T) {
					s, err := dev.NewStream()
					require.NoError(t, err)
					e := &env{t: t, s: s, n: n, off: off, rng: rand.New(rand.NewPCG(uint64(n), uint64(off)))}
					f(t, e)
					e.checkGuards()
				})
			}
		}
	}
}

type env struct {
	t      *testing.T
	s      Stream
	n, off int
	rng    *rand.Rand
	guards []func()
}

// put places x on the device at an odd place, with guards on both sides.
func put[T Elem](e *env, x []T) Buf[T] {
	whole, err := NewBuf[T](e.s.Device(), len(x)+e.off+2*guard)
	require.NoError(e.t, err)
	fill := make([]T, whole.Len())
	for i := range fill {
		fill[i] = T(77)
	}
	lo := guard + e.off
	hi := lo + len(x)
	copy(fill[lo:], x)
	Write(e.s, whole, fill)
	e.guards = append(e.guards, func() {
		got := get(e, whole)
		for i := range got {
			if (i < lo || i >= hi) && got[i] != 77 {
				e.t.Fatalf("element %d outside the window [%d, %d) was overwritten with %v", i, lo, hi, got[i])
			}
		}
	})
	return whole.Slice(lo, hi)
}

func get[T Elem](e *env, b Buf[T]) []T {
	x := make([]T, b.Len())
	require.NoError(e.t, Read(ctx, e.s, x, b))
	return x
}

func (e *env) checkGuards() {
	for _, g := range e.guards {
		g()
	}
}

// floats are heavy-tailed, with zeros, ties and tiny values among them.
func (e *env) floats() []float32 {
	x := make([]float32, e.n)
	for i := range x {
		switch e.rng.IntN(8) {
		case 0:
			x[i] = 0
		case 1:
			x[i] = float32(e.rng.IntN(5)) - 2
		case 2:
			x[i] = float32(e.rng.NormFloat64() * 1e-40)
		default:
			x[i] = float32(e.rng.NormFloat64() * math.Exp(2*e.rng.NormFloat64()))
		}
	}
	return x
}

// same compares bits, so that a NaN equals itself and -0 differs from 0.
func same(t *testing.T, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("element %d of %d: want %v, got %v", i, len(want), want[i], got[i])
		}
	}
}

// slowTopK is the definition: sort everything.
func slowTopK(x []float32, k int) []uint32 {
	order := make([]uint32, len(x))
	for i := range order {
		order[i] = uint32(i)
	}
	mag := func(i uint32) uint32 { return math.Float32bits(x[i]) &^ (1 << 31) }
	sort.SliceStable(order, func(a, b int) bool { return mag(order[a]) > mag(order[b]) })
	order = order[:k]
	slices.Sort(order)
	return order
}
