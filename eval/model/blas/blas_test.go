package blas

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

const eps32 = 1.0 / (1 << 23)

func TestGemm(t *testing.T) {
	t.Logf("implementation: %s", Name())
	rng := rand.New(rand.NewPCG(1, 2))
	for _, s := range [][3]int{{1, 1, 1}, {3, 5, 7}, {64, 192, 512}, {65, 193, 513}, {130, 70, 3}, {5, 400, 33}} {
		for trans := range 4 {
			transA, transB := trans&1 != 0, trans&2 != 0
			for _, beta := range []float32{0, 1, 0.5} {
				t.Run(fmt.Sprint(s, transA, transB, beta), func(t *testing.T) {
					checkGemm(t, rng, transA, transB, s[0], s[1], s[2], beta)
				})
			}
		}
	}
}

// matrix is rows x cols in a store that may be wider.
type matrix struct {
	x      []float32
	stride int
	trans  bool
}

func newMatrix(rng *rand.Rand, rows, cols, pad int, trans bool) matrix {
	if trans {
		rows, cols = cols, rows
	}
	m := matrix{make([]float32, rows*(cols+pad)), cols + pad, trans}
	for i := range m.x {
		m.x[i] = float32(rng.NormFloat64())
	}
	return m
}

func (m matrix) at(i, j int) float64 {
	if m.trans {
		i, j = j, i
	}
	return float64(m.x[i*m.stride+j])
}

func checkGemm(t *testing.T, rng *rand.Rand, transA, transB bool, m, n, k int, beta float32) {
	const alpha = 1.5
	a, b, c := newMatrix(rng, m, k, 1, transA), newMatrix(rng, k, n, 2, transB), newMatrix(rng, m, n, 3, false)
	before := append([]float32(nil), c.x...)
	if beta == 0 {
		for i := range m {
			for j := range n {
				c.x[i*c.stride+j] = float32(math.NaN()) // must be overwritten, not multiplied
			}
		}
	}
	Gemm(transA, transB, m, n, k, alpha, a.x, a.stride, b.x, b.stride, beta, c.x, c.stride)
	for i := range m {
		for j := range c.stride {
			got, old := float64(c.x[i*c.stride+j]), float64(before[i*c.stride+j])
			if j >= n {
				if got != old {
					t.Fatalf("C[%d][%d] beyond the columns is %v, was %v", i, j, got, old)
				}
				continue
			}
			want := float64(beta) * old
			abs := math.Abs(want)
			for l := range k {
				p := alpha * a.at(i, l) * b.at(l, j)
				want += p
				abs += math.Abs(p)
			}
			// k products and k sums, each rounded once, and the scaling by alpha and beta.
			if tol := float64(2*k+3) * eps32 * abs; !(math.Abs(got-want) <= tol) {
				t.Fatalf("C[%d][%d] is %v, want %v +- %v", i, j, got, want, tol)
			}
		}
	}
}

func TestAxpy(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 1000} {
		x, y := make([]float32, n), make([]float32, n+1)
		for i := range x {
			x[i], y[i] = float32(i%7), float32(i%5)
		}
		Axpy(2, x, y)
		for i := range x {
			if want := float32(i%5 + 2*(i%7)); y[i] != want {
				t.Fatalf("Axpy of %d: y[%d] is %v, want %v", n, i, y[i], want)
			}
		}
		if y[n] != 0 {
			t.Fatalf("Axpy of %d wrote past x", n)
		}
	}
}

// The shapes are those of a residual network's stages and of an LSTM layer.
func BenchmarkGemm(b *testing.B) {
	for _, s := range []struct {
		name           string
		transA, transB bool
		m, n, k        int
	}{
		{"conv16/forward", false, false, 16, 1024, 48}, {"conv64/forward", false, false, 64, 568, 192},
		{"conv16/input", true, false, 48, 1024, 16}, {"conv64/input", true, false, 192, 568, 64},
		{"conv16/weight", false, true, 16, 48, 1024}, {"conv64/weight", false, true, 64, 192, 568},
		{"lstm256/step", false, true, 32, 1024, 256}, {"lstm256/stepback", false, false, 32, 256, 1024},
		{"lstm256/weight", true, false, 1024, 256, 512},
	} {
		b.Run(s.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			x, y := newMatrix(rng, s.m, s.k, 0, s.transA), newMatrix(rng, s.k, s.n, 0, s.transB)
			c := newMatrix(rng, s.m, s.n, 0, false)
			for b.Loop() {
				Gemm(s.transA, s.transB, s.m, s.n, s.k, 1, x.x, x.stride, y.x, y.stride, 0, c.x, c.stride)
			}
			b.ReportMetric(2*float64(s.m*s.n*s.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
