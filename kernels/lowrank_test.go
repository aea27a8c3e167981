package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// lowRankShapes are rows, cols and rank: around the groups of four rows, the pairs of columns and the tile.
var lowRankShapes = [][3]int{
	{0, 0, 1}, {0, 5, 2}, {5, 0, 2}, {1, 1, 1}, {1, 9, 1}, {9, 1, 1}, {3, 7, 1}, {3, 7, 2}, {3, 7, 3}, {4, 8, 1}, {4, 8, 2}, {4, 8, 4},
	{5, 9, 3}, {7, 1, 5}, {8, 1000, 4}, {13, 1023, 2}, {13, 1025, 1}, {6, 2051, 3}, {1025, 6, 2}, {40, 50, 32}, {41, 51, 7},
}

// factors are a matrix and the factors of another of its shape.
type factors struct {
	*env
	rows, cols, rank int
	m, p, q          []float32
}

func eachShape(t *testing.T, f func(t *testing.T, e *factors)) {
	for _, shape := range lowRankShapes {
		for _, dev := range []Device{CPU(), Lazy()} {
			for _, off := range []int{0, 1, 3} {
				t.Run(fmt.Sprintf("%s/%dx%d/rank=%d/off=%d", dev.Name(), shape[0], shape[1], shape[2], off), func(t *testing.T) {
					s, err := dev.NewStream()
					require.NoError(t, err)
					e := &factors{rows: shape[0], cols: shape[1], rank: shape[2]}
					e.env = &env{t: t, s: s, off: off, rng: rand.New(rand.NewPCG(uint64(e.rows), uint64(e.cols)))}
					e.m, e.p, e.q = e.random(e.rows*e.cols), e.random(e.rows*e.rank), e.random(e.cols*e.rank)
					f(t, e)
					e.checkGuards()
				})
			}
		}
	}
}

func (e *factors) random(n int) []float32 {
	e.n = n
	return e.floats()
}

// within requires |want[i] - got[i]| <= roundings * 2^-24 * mass[i], and one smallest number more for products that underflow.
func within(t *testing.T, want, mass []float64, got []float32, roundings int) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		tol := float64(roundings) * (0x1p-24*mass[i] + 0x1p-149)
		if !(math.Abs(want[i]-float64(got[i])) <= tol) {
			t.Fatalf("element %d of %d: want %v, got %v, tolerance %v", i, len(want), want[i], got[i], tol)
		}
	}
}

func TestMulRight(t *testing.T) {
	eachShape(t, func(t *testing.T, e *factors) {
		p := put(e.env, e.p) // overwritten
		m, q := put(e.env, e.m), put(e.env, e.q)
		MulRight(e.s, p, m, q, e.rank)
		want, mass := make([]float64, len(e.p)), make([]float64, len(e.p))
		for k := range e.rank {
			for i := range e.rows {
				for j := range e.cols {
					x := float64(e.m[i*e.cols+j]) * float64(e.q[k*e.cols+j])
					want[k*e.rows+i] += x
					mass[k*e.rows+i] += math.Abs(x)
				}
			}
		}
		within(t, want, mass, get(e.env, p), e.cols+1) // a product and at most cols additions
		same(t, e.m, get(e.env, m))
		same(t, e.q, get(e.env, q))
	})
}

func TestMulLeft(t *testing.T) {
	eachShape(t, func(t *testing.T, e *factors) {
		q := put(e.env, e.q) // overwritten
		m, p := put(e.env, e.m), put(e.env, e.p)
		MulLeft(e.s, q, m, p, e.rank)
		want, mass := make([]float64, len(e.q)), make([]float64, len(e.q))
		for k := range e.rank {
			for i := range e.rows {
				for j := range e.cols {
					x := float64(e.m[i*e.cols+j]) * float64(e.p[k*e.rows+i])
					want[k*e.cols+j] += x
					mass[k*e.cols+j] += math.Abs(x)
				}
			}
		}
		within(t, want, mass, get(e.env, q), e.rows+1)
		same(t, e.m, get(e.env, m))
		same(t, e.p, get(e.env, p))
	})
}

// Outer and SubOuter must give exactly what their contract says: it fixes the order.
func TestOuter(t *testing.T) {
	eachShape(t, func(t *testing.T, e *factors) {
		product, rest := make([]float32, len(e.m)), append([]float32(nil), e.m...)
		for i := range e.rows {
			for j := range e.cols {
				for k := range e.rank {
					x := float32(e.p[k*e.rows+i] * e.q[k*e.cols+j])
					product[i*e.cols+j] += x
					rest[i*e.cols+j] -= x
				}
			}
		}
		m, p, q := put(e.env, e.m), put(e.env, e.p), put(e.env, e.q)
		SubOuter(e.s, m, p, q, e.rank)
		same(t, rest, get(e.env, m))
		Outer(e.s, m, p, q, e.rank)
		same(t, product, get(e.env, m))
		same(t, e.p, get(e.env, p))
		same(t, e.q, get(e.env, q))
	})
}

func TestLowRankShapesMustAgree(t *testing.T) {
	s, err := CPU().NewStream()
	require.NoError(t, err)
	buf := func(n int) Buf[float32] {
		b, err := NewBuf[float32](CPU(), n)
		require.NoError(t, err)
		return b
	}
	require.Panics(t, func() { MulRight(s, buf(6), buf(13), buf(8), 2) })
	require.Panics(t, func() { MulLeft(s, buf(7), buf(12), buf(6), 2) })
	require.Panics(t, func() { Outer(s, buf(12), buf(5), buf(8), 2) })
	require.Panics(t, func() { Orthogonalise(s, buf(5), 2) })
	require.Panics(t, func() { ReplaceDead(s, buf(4), buf(6), buf(2), 2) })
}

func BenchmarkLowRank(b *testing.B) {
	s, err := CPU().NewStream()
	require.NoError(b, err)
	for _, n := range []int{2560, 5000} {
		for _, rank := range []int{1, 2, 4, 8, 32} {
			m, p, q := benchBuf(b, n*n), benchBuf(b, n*rank), benchBuf(b, n*rank)
			for name, op := range map[string]func(){
				"MulRight":      func() { MulRight(s, p, m, q, rank) },
				"MulLeft":       func() { MulLeft(s, q, m, p, rank) },
				"Outer":         func() { Outer(s, m, p, q, rank) },
				"SubOuter":      func() { SubOuter(s, m, p, q, rank) },
				"Orthogonalise": func() { Orthogonalise(s, p, rank) },
			} {
				b.Run(fmt.Sprintf("%s/%dx%d/rank=%d", name, n, n, rank), func(b *testing.B) {
					b.SetBytes(int64(4 * n * n))
					for b.Loop() {
						op()
					}
				})
			}
		}
	}
}

func benchBuf(b *testing.B, n int) Buf[float32] {
	x, err := NewBuf[float32](CPU(), n)
	require.NoError(b, err)
	Normal(slice[float32](x.arg()), [4]uint32{}, [2]uint32{})
	return x
}
