package kernels

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// layouts are matrices of n entries in all: one row or column, and where n allows it some of each, wider than a strip too.
func layouts(n int) []Groups {
	all := []Groups{{1, n, false}, {n, 1, false}, {1, n, true}, {n, 1, true}}
	for _, cols := range []int{3, 8, 17, 125, 1365} {
		if n%cols == 0 {
			all = append(all, Groups{n / cols, cols, false}, Groups{n / cols, cols, true})
		}
	}
	if n == 4097 {
		all = append(all, Groups{17, 241, false}, Groups{17, 241, true}, Groups{1, 4097, true})
	}
	return all
}

func TestOneBit(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		for _, g := range layouts(e.n) {
			x, y := e.floats(), e.floats()
			if e.n > 0 {
				x[e.n/2] = float32(math.Copysign(0, -1))
			}
			bx, by, msg := put(e, x), put(e, y), put(e, bytes.Repeat([]byte{0xa5}, OneBitBytes(g)))
			TakeOneBit(e.s, msg, bx, g)
			AddOneBit(e.s, by, 0.5, msg, g)
			rest, sum, raw := get(e, bx), get(e, by), get(e, msg)
			var sums, mass [2][]float64
			var count [2][]int
			for k := range sums {
				sums[k], mass[k], count[k] = make([]float64, g.Len()), make([]float64, g.Len()), make([]int, g.Len())
			}
			group := func(i int) int {
				if g.ByColumn {
					return i % g.Cols
				}
				return i / g.Cols
			}
			sign := func(v float32) int {
				if v < 0 {
					return 1
				}
				return 0
			}
			for i, v := range x {
				k, j := sign(v), group(i)
				sums[k][j] += float64(v)
				mass[k][j] += math.Abs(float64(v))
				count[k][j]++
			}
			for i, v := range x {
				k, j := sign(v), group(i)
				require.Equal(t, k, int(raw[8*g.Len()+i/8]>>(i%8)&1), "sign of entry %d, %+v", i, g)
				level := getScale(raw[8*j+4*(1-k):])
				// The mean of numbers of one sign, rounded once to float32, which may be subnormal.
				tol := mass[k][j]/float64(count[k][j])*0x1.01p-24 + 0x1p-149
				require.InDelta(t, sums[k][j]/float64(count[k][j]), level, tol, "level of group %d, %+v", j, g)
				require.Equal(t, v-level, rest[i], "what is left of entry %d", i)
				require.Equal(t, y[i]+0.5*level, sum[i], "what is decoded of entry %d", i)
			}
			for k := range count {
				for j, c := range count[k] {
					if c == 0 {
						require.Zero(t, getScale(raw[8*j+4*(1-k):]), "an empty side")
					}
				}
			}
			for i := e.n; i < 8*(len(raw)-8*g.Len()); i++ {
				require.Zero(t, raw[8*g.Len()+i/8]>>(i%8)&1, "padding")
			}
		}
		require.Panics(t, func() {
			TakeOneBit(e.s, put(e, make([]byte, 3)), put(e, e.floats()), Groups{1, e.n, false})
		})
	})
}

// Whatever a peer sends, what is decoded is finite, for as many ranks as you like.
func TestHostileScales(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		const ranks = 7
		for _, scale := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -math.MaxFloat32, maxScale, -3} {
			y := put(e, make([]float32, e.n))
			random := func(n int) []byte {
				b := make([]byte, n)
				for i := range b {
					b[i] = byte(e.rng.Uint32())
				}
				return b
			}
			scaled := func(b []byte, scales int) []byte {
				for j := range scales {
					putScale(b[4*j:], scale)
				}
				return b
			}
			tensor, columns := Groups{1, e.n, false}, Groups{1, e.n, true}
			blocks := (e.n + 4) / 5
			largest := put(e, []float32{0.5})
			for range ranks {
				const a = float32(1) / ranks
				AddOneBit(e.s, y, a, put(e, scaled(random(OneBitBytes(tensor)), 2)), tensor)
				AddOneBit(e.s, y, a, put(e, scaled(random(OneBitBytes(columns)), 2*e.n)), columns)
				AddTernary(e.s, y, a, put(e, random(TernaryBytes(e.n))), put(e, scaled(random(4), 1)))
				AddCounts(e.s, y, a, put(e, random(e.n)), put(e, scaled(random(4), 1)))
				AddBlockInt8(e.s, y, a, put(e, scaled(random(BlockInt8Bytes(e.n, 5)), blocks)), 5)
				MaxScale(e.s, largest, put(e, scaled(random(4), 1)))
			}
			for _, v := range append(get(e, y), get(e, largest)...) {
				require.Zero(t, v-v, "%v of scale %v", v, scale)
			}
			require.GreaterOrEqual(t, get(e, largest)[0], float32(0.5))
		}
	})
}
