package kernels

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoundSparse(t *testing.T) {
	type rounder struct {
		name  string
		run   func(s Stream, x Buf[float32], idx Buf[uint32], val Buf[float32], n Buf[uint32], scale Buf[float32])
		check func(t *testing.T, before, after, scale float32, max, mean float64)
	}
	for _, r := range []rounder{
		{"f16", func(s Stream, x Buf[float32], idx Buf[uint32], val Buf[float32], n Buf[uint32], _ Buf[float32]) {
			RoundF16(s, x, idx, val, n)
		},
			func(t *testing.T, before, after, _ float32, _, _ float64) {
				require.Equal(t, after, fromF16(toF16(after)), "not a half")
				// Half an ulp of 11 bits, or half the smallest subnormal.
				require.InDelta(t, before, after, math.Abs(float64(before))*0x1p-11+0x1p-25)
			}},
		{"int8", RoundInt8, func(t *testing.T, before, after, scale float32, max, _ float64) {
			require.InDelta(t, max/127, scale, max*0x1p-24+0x1p-149) // which may be subnormal
			require.Equal(t, after, float32(Int8Level(after, scale))*scale, "not a level")
			require.InDelta(t, before, after, float64(scale)*0.5000001+64*0x1p-149)
		}},
		{"sign", RoundSign, func(t *testing.T, before, after, scale float32, _, mean float64) {
			require.InDelta(t, mean, scale, mean*0x1p-23+0x1p-149)
			require.Equal(t, scale, float32(math.Abs(float64(after))))
			require.False(t, before*after < 0, "the sign must stay")
		}},
	} {
		t.Run(r.name, func(t *testing.T) {
			each(t, func(t *testing.T, e *env) {
				x := e.floats()
				k := e.n/3 + min(e.n, 1)
				bx, idx, val, n, scale := put(e, x), put(e, make([]uint32, k)), put(e, make([]float32, k)), put(e, []uint32{0}), put(e, []float32{-1})
				TakeTopK(e.s, idx, val, n, bx, k, put(e, make([]uint32, TopKWork(e.n, k))))
				before := get(e, val)
				var most, sum float64
				for _, v := range before {
					most, sum = max(most, math.Abs(float64(v))), sum+math.Abs(float64(v))
				}
				r.run(e.s, bx, idx, val, n, scale)
				after, rest, a := get(e, val), get(e, bx), get(e, scale)[0]
				for j, i := range get(e, idx) {
					r.check(t, before[j], after[j], a, most, sum/float64(max(k, 1)))
					require.Equal(t, before[j]-after[j], rest[i], "what rounding loses stays")
				}
			})
		})
	}
}

func TestRoundF16Saturates(t *testing.T) {
	e := &env{t: t, n: 1}
	e.s, _ = CPU().NewStream()
	x, val := put(e, []float32{0}), put(e, []float32{-1e6})
	RoundF16(e.s, x, put(e, []uint32{0}), val, put(e, []uint32{1}))
	require.Equal(t, []float32{-65504}, get(e, val))
	require.Equal(t, []float32{-1e6 + 65504}, get(e, x))
}
