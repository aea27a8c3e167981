package kernels

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTakeAbove(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		for _, tau := range []float32{0x1p-149, 0.5, 1, 2, 1e30} {
			x := e.floats()
			bx, idx, val := put(e, x), put(e, make([]uint32, e.n)), put(e, make([]float32, e.n))
			n, scale, most := put(e, []uint32{9}), put(e, []float32{9}), put(e, []float32{9})
			TakeAbove(e.s, idx, val, n, scale, most, bx, tau)
			var wantIdx []uint32
			var wantVal []float32
			var largest float32
			for i, v := range x {
				if v > tau {
					wantIdx, wantVal = append(wantIdx, uint32(i)), append(wantVal, tau)
					x[i] -= tau
				} else if v < -tau {
					wantIdx, wantVal = append(wantIdx, uint32(i)), append(wantVal, -tau)
					x[i] += tau
				}
				largest = max(largest, float32(math.Abs(float64(x[i]))))
			}
			k := int(get(e, n)[0])
			require.Equal(t, len(wantIdx), k)
			require.Equal(t, wantIdx, append([]uint32(nil), get(e, idx)[:k]...))
			require.Equal(t, wantVal, append([]float32(nil), get(e, val)[:k]...))
			require.Equal(t, []float32{tau}, get(e, scale))
			require.Equal(t, []float32{largest}, get(e, most))
			for i, v := range get(e, bx) {
				require.Equal(t, x[i], v)
			}
		}
	})
}
