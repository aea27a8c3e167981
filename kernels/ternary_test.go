package kernels

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTernaryScale(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		for _, shift := range []float32{0, 1000} {
			x := e.floats()
			var sum, squares, most float64
			for i := range x {
				x[i] += shift
				sum += float64(x[i])
				most = max(most, math.Abs(float64(x[i])))
			}
			n := float64(max(e.n, 1))
			for _, v := range x { // two passes, as NumPy does it
				squares += (float64(v) - sum/n) * (float64(v) - sum/n)
			}
			sigma := math.Sqrt(squares / n)
			for _, clip := range []float32{0, 0.5, 2.5} {
				want := most
				if clip > 0 && sigma > 0 {
					want = min(most, float64(clip)*sigma)
				}
				got := put(e, []float32{-1})
				TernaryScale(e.s, got, put(e, x), clip)
				require.InDelta(t, want, get(e, got)[0], want*0x1p-23, "clip %v, shift %v", clip, shift)
			}
		}
		flat := make([]float32, e.n)
		for i := range flat {
			flat[i] = -0.1
		}
		got := put(e, []float32{-1})
		TernaryScale(e.s, got, put(e, flat), 2.5)
		require.Equal(t, float32(min(e.n, 1))*0.1, get(e, got)[0], "equal entries are not clipped away")
	})
}

func TestDrawAndAddTernary(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		x, y := e.floats(), e.floats()
		d := Draw{Rank: 3, Step: 5, ID: 0xdeadbeef, Key: Key(0x0123456789abcdef)}
		for _, c := range []struct{ clip, scale float32 }{{0, 0}, {1, 1}, {1, 2}, {0x1p-149, 0x1p-149}, {100, 100}} {
			bx, by, codes := put(e, x), put(e, y), put(e, bytes.Repeat([]byte{0xa5}, TernaryBytes(e.n)))
			clip, scale := put(e, []float32{c.clip}), put(e, []float32{c.scale})
			DrawTernary(e.s, codes, bx, clip, scale, d)
			AddTernary(e.s, by, 0.5, codes, Bytes(scale))
			raw := get(e, codes)
			for i, v := range get(e, by) {
				u := float64(Philox([4]uint32{uint32(i / 4), d.Rank, d.Step, d.ID}, d.Key)[i%4]>>8) * 0x1p-24
				code, value := byte(0), float32(0)
				if u*float64(c.scale) < min(math.Abs(float64(x[i])), float64(c.clip)) {
					if code, value = 1, c.scale; x[i] < 0 {
						code, value = 2, -c.scale
					}
				}
				require.Equal(t, code, raw[i/4]>>(i%4*2)&3, "code %d of %v, clip and scale %v", i, x[i], c)
				require.Equal(t, y[i]+0.5*value, v)
			}
			for i := e.n; i < 4*len(raw); i++ {
				require.Zero(t, raw[i/4]>>(i%4*2)&3, "padding")
			}
			same(t, x, get(e, bx))
		}
		by := put(e, y)
		AddTernary(e.s, by, 1, put(e, bytes.Repeat([]byte{0xff}, TernaryBytes(e.n))), Bytes(put(e, []float32{5})))
		for i, v := range get(e, by) {
			require.Equal(t, y[i], v, "a code of 3 is 0")
		}
	})
}

func TestCountTernary(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		rng := rand.New(rand.NewPCG(8, uint64(e.n)))
		want := make([]int8, 4*TernaryBytes(e.n))
		counts := put(e, make([]byte, len(want)))
		for range MostCounted { // as many as a count holds, the first entry always up and the second always down
			codes := make([]byte, TernaryBytes(e.n))
			for i := range codes {
				codes[i] = byte(rng.Uint32())
			}
			if e.n > 0 {
				codes[0] = codes[0]&0xf0 | 1 | 2<<2
			}
			for i := range want {
				want[i] += [4]int8{0, 1, -1, 0}[codes[i/4]>>(i%4*2)&3]
			}
			CountTernary(e.s, counts, put(e, codes))
		}
		for i, c := range get(e, counts) {
			require.Equal(t, want[i], int8(c), "count %d", i)
		}
		if e.n > 0 {
			require.Equal(t, []int8{127, -127}, want[:2])
		}
		y := e.floats()
		by := put(e, y)
		AddCounts(e.s, by, 0.3, counts.Slice(0, e.n), Bytes(put(e, []float32{1.7})))
		a := float32(0.3)
		a *= 1.7
		for i, v := range get(e, by) {
			p := a * float32(want[i])
			require.Equal(t, y[i]+p, v)
		}
	})
}

// What is sent is decided by an exact comparison: not at equality, but for the next number up.
func TestDrawTernaryIsExact(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		d := Draw{Rank: 1, Step: 2, ID: 3, Key: Key(4)}
		for _, scale := range []float32{1, 0x1.fffffep0, 0x1.234568p-3, 0x1.777776p-120, 0x1.abcdp-127, maxScale} {
			equal, above := make([]float32, e.n), make([]float32, e.n)
			for i := range equal {
				u := float64(Philox([4]uint32{uint32(i / 4), d.Rank, d.Step, d.ID}, d.Key)[i%4]>>8) * 0x1p-24
				x := u * float64(scale) // the largest float32 that is not more, and the next
				equal[i] = float32(x)
				if float64(equal[i]) > x {
					equal[i] = math.Nextafter32(equal[i], 0)
				}
				above[i] = math.Nextafter32(equal[i], math.MaxFloat32)
			}
			b, codes := put(e, []float32{scale}), put(e, make([]byte, TernaryBytes(e.n)))
			DrawTernary(e.s, codes, put(e, equal), b, b, d)
			for i, c := range get(e, codes) {
				require.Zero(t, c, "entries %d to %d, scale %v", 4*i, 4*i+3, scale)
			}
			DrawTernary(e.s, codes, put(e, above), b, b, d)
			for i, c := range get(e, codes) {
				require.Equal(t, byte(0x55)>>(2*max(0, 4*i+4-e.n)), c, "entries %d to %d, scale %v", 4*i, 4*i+3, scale)
			}
		}
	})
}

// Over many steps the mean of what is drawn is the clipped number, and no two counters draw alike.
func TestDrawTernaryIsUnbiased(t *testing.T) {
	const draws = 4000
	s, err := CPU().NewStream()
	require.NoError(t, err)
	e := &env{t: t, s: s}
	x := []float32{0, 1e-3, 0.01, -0.1, 0.25, -0.5, 0.9, 0.999, -1, 3}
	bx, codes, scale := put(e, x), put(e, make([]byte, TernaryBytes(len(x)))), put(e, []float32{1})
	y, sum := put(e, make([]float32, len(x))), make([]float64, len(x))
	for step := range draws {
		Zero(s, y)
		DrawTernary(s, codes, bx, scale, scale, Draw{Rank: uint32(step % 3), Step: uint32(step / 3), ID: 1, Key: Key(7)})
		AddTernary(s, y, 1, codes, Bytes(scale))
		for i, v := range get(e, y) {
			sum[i] += float64(v)
		}
	}
	for i, v := range x {
		p := min(math.Abs(float64(v)), 1)
		// Five standard deviations of the mean of Bernoulli trials; two of the ten may not deviate at all.
		require.InDelta(t, math.Copysign(p, float64(v)), sum[i]/draws, 5*math.Sqrt(p*(1-p)/draws)+1e-12, "%v", v)
	}
}
