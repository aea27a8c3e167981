package kernels

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// slowGramSchmidt is modified Gram-Schmidt in float64, once.
func slowGramSchmidt(p []float32, rank int) [][]float64 {
	n := len(p) / rank
	norm := func(x []float64) float64 {
		s := 0.0
		for _, v := range x {
			s += v * v
		}
		return math.Sqrt(s)
	}
	cols := make([][]float64, rank)
	for j := range cols {
		c := make([]float64, n)
		for i := range c {
			c[i] = float64(p[j*n+i])
		}
		was := norm(c)
		for _, e := range cols[:j] {
			d := 0.0
			for i := range c {
				d += e[i] * c[i]
			}
			for i := range c {
				c[i] -= d * e[i]
			}
		}
		now := norm(c)
		for i := range c {
			if now > 1e-5*was {
				c[i] /= now
			} else {
				c[i] = 0
			}
		}
		cols[j] = c
	}
	return cols
}

// orthonormal requires that the columns that are not zero are, and returns how many there are.
func orthonormal(t *testing.T, p []float32, rank int) (alive int) {
	t.Helper()
	n := len(p) / rank
	for j := range rank {
		for i := range j + 1 {
			d := 0.0
			for r := range n {
				d += float64(p[i*n+r]) * float64(p[j*n+r])
			}
			want := 0.0
			if i == j && d != 0 {
				want = 1
				alive++
			}
			// Rounding unit columns to float32 changes their inner product by at most 2^-24 each, and their length likewise.
			require.InDelta(t, want, d, 4*0x1p-24, "columns %d and %d of %d", i, j, rank)
		}
	}
	return alive
}

func TestOrthogonalise(t *testing.T) {
	eachShape(t, func(t *testing.T, e *factors) {
		p := put(e.env, e.p)
		Orthogonalise(e.s, p, e.rank)
		got := get(e.env, p)
		alive := orthonormal(t, got, e.rank)
		require.LessOrEqual(t, alive, e.rows)
		// Well-conditioned columns must be those of the definition.
		e.p = make([]float32, len(e.p))
		for k := range min(e.rank, e.rows) {
			for i := range e.rows {
				e.p[k*e.rows+i] = float32(e.rng.NormFloat64()) / float32(e.rows)
			}
			e.p[k*e.rows+k] += 3
		}
		p = put(e.env, e.p)
		Orthogonalise(e.s, p, e.rank)
		got = get(e.env, p)
		for k, c := range slowGramSchmidt(e.p, e.rank) {
			for i, want := range c {
				// Each of the earlier columns adds a rounding, of elements up to 1, and so does the quotient; both times.
				require.InDelta(t, want, got[k*e.rows+i], float64(4*(k+1))*0x1p-24)
			}
		}
	})
}

func TestOrthogonaliseDependentColumns(t *testing.T) {
	const n = 50
	each(t, func(t *testing.T, e *env) {
		if e.n != 8 {
			return // the length of the harness does not matter here
		}
		column := func(f func(i int) float64) []float32 {
			c := make([]float32, n)
			for i := range c {
				c[i] = float32(f(i))
			}
			return c
		}
		a := column(func(i int) float64 { return math.Sin(float64(i)) + 2 })
		b := column(func(i int) float64 { return math.Cos(float64(3 * i)) })
		times := func(f float64, x []float32) []float32 {
			return column(func(i int) float64 { return f * float64(x[i]) })
		}
		plus := func(x []float32, f float64, y []float32) []float32 {
			return column(func(i int) float64 { return float64(x[i]) + f*float64(y[i]) })
		}
		for name, c := range map[string]struct {
			cols  [][]float32
			alive []bool
		}{
			"zero":            {[][]float32{make([]float32, n), make([]float32, n)}, []bool{false, false}},
			"zero first":      {[][]float32{make([]float32, n), a}, []bool{false, true}},
			"repeated":        {[][]float32{a, a, b}, []bool{true, false, true}},
			"multiple":        {[][]float32{a, times(-1/3.0, a)}, []bool{true, false}},
			"sum":             {[][]float32{a, b, plus(a, 1, b)}, []bool{true, true, false}},
			"nearly repeated": {[][]float32{a, plus(a, 1e-4, b)}, []bool{true, true}},
			"just dependent":  {[][]float32{a, plus(a, 1e-6, b)}, []bool{true, false}},
			"tiny":            {[][]float32{times(1e-30, a), times(1e-30, b)}, []bool{true, true}},
			"huge":            {[][]float32{times(1e37, a), times(1e37, b)}, []bool{true, true}},
			"not a number":    {[][]float32{column(func(int) float64 { return math.NaN() }), b}, []bool{false, true}},
		} {
			var flat []float32
			for _, x := range c.cols {
				flat = append(flat, x...)
			}
			rank := len(c.cols)
			p := put(e, flat)
			Orthogonalise(e.s, p, rank)
			got := get(e, p)
			orthonormal(t, got, rank)
			first := make([]float32, 3*rank)
			for i := range first {
				first[i] = float32(100 + i)
			}
			old := make([]float32, len(first))
			q := put(e, old)
			ReplaceDead(e.s, q, put(e, first), p, rank)
			for k, alive := range c.alive {
				require.Equal(t, alive, !zero(got[k*n:(k+1)*n]), "%s: column %d", name, k)
				want := old
				if !alive {
					want = first
				}
				same(t, want[3*k:3*k+3], get(e, q)[3*k:3*k+3])
			}
		}
	})
}
