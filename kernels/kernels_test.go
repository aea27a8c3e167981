package kernels

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuf(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		x := e.floats()
		b := put(e, x)
		var stage []float32
		v, err := View(ctx, e.s, b, &stage)
		require.NoError(t, err)
		same(t, x, v)
		_, host := Host(b)
		require.Equal(t, e.s.Device().Name() == "cpu" || e.n == 0, host)
		if e.n >= 7 {
			same(t, x[2:5], get(e, b.Slice(2, 5)))
			require.Panics(t, func() { b.Slice(2, e.n+1) })
			c := put(e, make([]float32, 3))
			Copy(e.s, c, b.Slice(1, 4))
			same(t, x[1:4], get(e, c))
		}
		require.Panics(t, func() { Add(e.s, b, 1, put(e, make([]float32, e.n+1))) })
	})
}

func TestLazyRunsNothingBeforeSync(t *testing.T) {
	s, err := Lazy().NewStream()
	require.NoError(t, err)
	b, err := NewBuf[float32](s.Device(), 3)
	require.NoError(t, err)
	Write(s, b, []float32{1, 2, 3})
	require.Equal(t, []float32{0, 0, 0}, slice[float32](b.arg()), "nothing may run before Sync")
	require.NoError(t, s.Sync(ctx))
	require.Equal(t, []float32{1, 2, 3}, slice[float32](b.arg()))
}

func TestFirstFailureSticks(t *testing.T) {
	broken := errors.New("broken")
	s, err := FailAfter(2, broken).NewStream()
	require.NoError(t, err)
	b, err := NewBuf[float32](s.Device(), 1)
	require.NoError(t, err)
	Write(s, b, []float32{1})
	Add(s, b, 1, b)
	require.NoError(t, s.Sync(ctx))
	Add(s, b, 1, b)
	require.ErrorIs(t, s.Sync(ctx), broken)
	require.ErrorIs(t, s.Sync(ctx), broken)
	require.Equal(t, []float32{2}, slice[float32](b.arg()), "work after the failure must be skipped")
}

func TestAlloc(t *testing.T) {
	_, err := NewBuf[float32](CPU(), 1<<50)
	require.Error(t, err)
	_, err = CPU().Alloc(-1)
	require.Error(t, err)
}

func TestVectorOps(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		x, y := e.floats(), e.floats()
		for _, a := range []float32{1, -0.37} {
			want := make([]float32, e.n)
			for i := range want {
				want[i] = y[i] + float32(a*x[i])
			}
			b := put(e, y)
			Add(e.s, b, a, put(e, x))
			same(t, want, get(e, b))
		}
		b := put(e, x)
		Scale(e.s, b, 1.5)
		for i, v := range get(e, b) {
			require.Equal(t, x[i]*1.5, v)
		}
		Zero(e.s, b)
		same(t, make([]float32, e.n), get(e, b))
	})
}

func TestNonFinite(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		x := e.floats()
		flag := put(e, []uint32{0})
		if e.n > 0 {
			x[e.n/2] = math.MaxFloat32
		}
		NonFinite(e.s, flag, put(e, x))
		require.Equal(t, []uint32{0}, get(e, flag))
		for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
			for _, at := range []int{0, e.n / 2, e.n - 1} {
				if e.n == 0 {
					continue
				}
				y := append([]float32(nil), x...)
				y[at] = float32(bad)
				f := put(e, []uint32{0})
				NonFinite(e.s, f, put(e, y))
				require.Equal(t, []uint32{1}, get(e, f), "%v at %d", bad, at)
				NonFinite(e.s, f, put(e, x))
				require.Equal(t, []uint32{1}, get(e, f), "the flag must stay up")
			}
		}
	})
}

func TestNorm(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		x := e.floats()
		var want float64
		for _, v := range x {
			want += float64(v) * float64(v)
		}
		sum := put(e, []float64{0})
		b := put(e, x)
		SumSquares(e.s, sum, b)
		got := get(e, sum)[0]
		require.InDelta(t, want, got, 2*float64(e.n)*0x1p-53*want, "n roundings of a sum of positive terms")
		norm := math.Sqrt(want)
		ClipNorm(e.s, b, sum, float32(2*norm)+1)
		same(t, x, get(e, b))
		if norm == 0 {
			return
		}
		limit := float32(norm / 3)
		ClipNorm(e.s, b, sum, limit)
		for i, v := range get(e, b) {
			w := float64(x[i]) * float64(limit) / norm
			require.InDelta(t, w, v, 4*0x1p-24*math.Abs(w)+0x1p-149)
		}
	})
}

func TestMomentum(t *testing.T) {
	const m = 0.9
	each(t, func(t *testing.T, e *env) {
		for _, nesterov := range []bool{false, true} {
			u, v, g := e.floats(), e.floats(), e.floats()
			bu, bv, bg := put(e, u), put(e, v), put(e, g)
			Correct(e.s, bu, bv, bg, m, nesterov)
			gu, gv := get(e, bu), get(e, bv)
			same(t, g, get(e, bg))
			for i := range u {
				wu := m*float64(u[i]) + float64(g[i])
				wv := float64(v[i]) + wu
				if nesterov {
					wu = m * (float64(u[i]) + float64(g[i]))
					wv = float64(v[i]) + wu + float64(g[i])
				}
				// Four roundings, each half an ulp of a partial result, which may be subnormal.
				tol := 4*0x1p-149 + 4*0x1p-24*(math.Abs(float64(u[i]))+math.Abs(float64(v[i]))+2*math.Abs(float64(g[i])))
				require.InDelta(t, wu, gu[i], tol)
				require.InDelta(t, wv, gv[i], tol)
			}
			bu, bg = put(e, u), put(e, g)
			Momentum(e.s, bu, bg, m, nesterov)
			gu, gg := get(e, bu), get(e, bg)
			for i := range u {
				wu := m*float64(u[i]) + float64(g[i])
				wg := wu
				if nesterov {
					wg = float64(g[i]) + m*wu
				}
				tol := 4*0x1p-149 + 4*0x1p-24*(math.Abs(float64(u[i]))+2*math.Abs(float64(g[i])))
				require.InDelta(t, wu, gu[i], tol)
				require.InDelta(t, wg, gg[i], tol)
			}
		}
	})
}

func TestScatter(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		y := e.floats()
		var idx []uint32
		var val []float32
		for i := range y {
			if e.rng.IntN(3) == 0 {
				idx, val = append(idx, uint32(i)), append(val, float32(e.rng.NormFloat64()))
			}
		}
		n := len(idx)
		idx, val = append(idx, 1<<31, 1<<31), append(val, 9, 9) // beyond the length: must not be touched
		b, bi, bv, bn := put(e, y), put(e, idx), put(e, val), put(e, []uint32{uint32(n)})
		ScatterAdd(e.s, b, 0.5, bi, bv, bn)
		want := append([]float32(nil), y...)
		for j := range n {
			want[idx[j]] += 0.5 * val[j]
		}
		same(t, want, get(e, b))
		for _, cut := range [][2]int{{0, e.n}, {e.n / 3, 2 * e.n / 3}, {e.n, 2 * e.n}, {5, 5}} {
			oi, ov, on := put(e, make([]uint32, len(idx))), put(e, make([]float32, len(idx))), put(e, []uint32{9})
			SelectRange(e.s, oi, ov, on, bi, bv, bn, cut[0], cut[1])
			var wi []uint32
			var wv []float32
			for j := range n {
				if i := int(idx[j]); cut[0] <= i && i < cut[1] {
					wi, wv = append(wi, uint32(i-cut[0])), append(wv, val[j])
				}
			}
			require.Equal(t, uint32(len(wi)), get(e, on)[0])
			require.Equal(t, wi, append([]uint32(nil), get(e, oi)[:len(wi)]...))
			require.Equal(t, wv, append([]float32(nil), get(e, ov)[:len(wv)]...))
		}
		short := put(e, append([]float32(nil), y[:e.n/2]...))
		ScatterAdd(e.s, short, 0.5, bi, bv, bn)
		same(t, want[:e.n/2], get(e, short))
		ClearAt(e.s, b, bi, bn)
		for j := range n {
			want[idx[j]] = 0
		}
		same(t, want, get(e, b))
	})
}
