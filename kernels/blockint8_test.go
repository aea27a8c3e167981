package kernels

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBlockInt8(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		for _, block := range []int{1, 3, 256, 5000} {
			x, y := e.floats(), e.floats()
			bx, by, msg := put(e, x), put(e, y), put(e, bytes.Repeat([]byte{0xa5}, BlockInt8Bytes(e.n, block)))
			TakeBlockInt8(e.s, msg, bx, block)
			AddBlockInt8(e.s, by, 0.5, msg, block)
			rest, sum, raw := get(e, bx), get(e, by), get(e, msg)
			levels := raw[len(raw)-e.n:]
			for i, v := range x {
				first := i / block * block
				var most float64
				for _, w := range x[first:min(first+block, e.n)] {
					most = max(most, math.Abs(float64(w)))
				}
				scale, q := getScale(raw[4*(i/block):]), float32(int8(levels[i]))
				if most < 127*0x1p-126 {
					require.Zero(t, scale)
					require.Zero(t, q)
				} else {
					require.InDelta(t, most/127, scale, most/127*0x1p-24)
					// Half a level, and two roundings of a quotient of at most 127.
					require.InDelta(t, v/scale, q, 0.5+127*0x1p-22, "entry %d", i)
					require.GreaterOrEqual(t, q, float32(-127))
				}
				require.Equal(t, v-float32(q*scale), rest[i])
				require.Equal(t, y[i]+float32(q*float32(0.5*scale)), sum[i])
			}
		}
	})
}

func TestBlockInt8RoundsHalfToEven(t *testing.T) {
	s, err := CPU().NewStream()
	require.NoError(t, err)
	e := &env{t: t, s: s}
	x := []float32{-127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 0.4999, 0.5001} // the scale is 1
	msg := put(e, make([]byte, BlockInt8Bytes(len(x), 16)))
	TakeBlockInt8(s, msg, put(e, x), 16)
	for i, want := range []int8{-127, 0, 2, 2, 0, -2, -2, 126, 0, 1} {
		require.Equal(t, want, int8(get(e, msg)[4+i]), "%v", x[i])
	}
}
