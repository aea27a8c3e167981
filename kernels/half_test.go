package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var halves = []struct {
	t        DType
	exp, man int // bits of exponent and mantissa
}{{F16, 5, 10}, {BF16, 8, 7}}

// halfValue is what h stands for, from the definition of the format.
func halfValue(h uint16, exp, man int) float64 {
	e, m := int(h>>man)&(1<<exp-1), float64(h&(1<<man-1))
	bias := 1<<(exp-1) - 1
	var v float64
	switch {
	case e == 1<<exp-1 && m != 0:
		return math.NaN()
	case e == 1<<exp-1:
		v = math.Inf(1)
	case e == 0:
		v = math.Ldexp(m, 1-bias-man)
	default:
		v = math.Ldexp(m+float64(int(1)<<man), e-bias-man)
	}
	if h>>15 == 1 {
		return -v
	}
	return v
}

// nearestHalf finds the half next to x by bisection over the values, and breaks ties to the even one.
func nearestHalf(x float64, exp, man int) uint16 {
	sign := uint16(0)
	if math.Signbit(x) {
		sign, x = 0x8000, -x
	}
	inf := uint16(1<<exp-1) << man
	value := func(h uint16) float64 {
		if h == inf { // where the next value would be, were there room for its exponent
			return 2 * halfValue(inf-1<<man, exp, man)
		}
		return halfValue(h, exp, man)
	}
	if x >= value(inf) {
		return sign | inf
	}
	lo, hi := uint16(0), inf // value(lo) <= x < value(hi)
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; value(mid) <= x {
			lo = mid
		} else {
			hi = mid
		}
	}
	below, above := x-value(lo), value(hi)-x
	if above < below || above == below && lo&1 == 1 {
		lo = hi
	}
	return sign | lo
}

func TestFromHalfAll(t *testing.T) { eachCode(t, testFromHalfAll) }

func testFromHalfAll(t *testing.T) {
	for _, f := range halves {
		h, x := make([]uint16, 1<<16), make([]float32, 1<<16)
		for i := range h {
			h[i] = uint16(i)
		}
		FromHalf(f.t, x, h)
		back := make([]uint16, len(h))
		ToHalf(f.t, back, x)
		quiet := uint16(1) << (f.man - 1)
		for i, got := range x {
			want := halfValue(h[i], f.exp, f.man)
			if math.IsNaN(want) {
				if got == got || back[i] != h[i]|quiet {
					t.Fatalf("%v NaN %04x: widened to %v, back to %04x", f.t, h[i], got, back[i])
				}
				continue
			}
			if math.Float64bits(float64(got)) != math.Float64bits(want) || back[i] != h[i] {
				t.Fatalf("%v %04x: got %v, want %v; back to %04x", f.t, h[i], got, want, back[i])
			}
		}
	}
}

func TestToHalfRounds(t *testing.T) { eachCode(t, testToHalfRounds) }

func testToHalfRounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range halves {
		var xs []float32
		for i := range 1 << 15 { // every half, the midpoint to the next one, and the floats beside both
			v := halfValue(uint16(i), f.exp, f.man)
			next := halfValue(uint16(i)+1, f.exp, f.man)
			for _, y := range []float32{float32(v), float32((v + next) / 2)} {
				xs = append(xs, y, -y, math.Nextafter32(y, 0), math.Nextafter32(y, float32(math.Inf(1))))
			}
		}
		for range 50000 {
			xs = append(xs, math.Float32frombits(rng.Uint32()))
		}
		xs = append(xs, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, 65504, 65519.996, 65520, 65536, 0x1p-25, 0x1.000002p-25)
		got := make([]uint16, len(xs))
		ToHalf(f.t, got, xs)
		for i, x := range xs {
			if x != x {
				if h := got[i]; !math.IsNaN(halfValue(h, f.exp, f.man)) || h>>15 != uint16(math.Float32bits(x)>>31) {
					t.Fatalf("%v of NaN %08x is %04x", f.t, math.Float32bits(x), h)
				}
				continue
			}
			if want := nearestHalf(float64(x), f.exp, f.man); got[i] != want {
				t.Fatalf("%v of %v (%08x): got %04x, want %04x", f.t, x, math.Float32bits(x), got[i], want)
			}
		}
	}
}

// BenchmarkHalf reports the time as a multiple of copying as many float32 in the same run, the best of the iterations each.
func BenchmarkHalf(b *testing.B) {
	for _, n := range []int{100_000, 6_500_000, 25_000_000} {
		x, y, h := make([]float32, n), make([]float32, n), make([]uint16, n)
		for i := range x {
			x[i] = float32(i) / float32(n)
		}
		floor := best(8, func() { copy(y, x) })
		for _, f := range halves {
			for _, c := range []struct {
				name string
				cast func()
			}{
				{"to", func() { ToHalf(f.t, h, x) }},
				{"from", func() { FromHalf(f.t, y, h) }},
			} {
				b.Run(fmt.Sprintf("%s/%v/n=%d", c.name, f.t, n), func(b *testing.B) {
					took := best(b.N, c.cast)
					b.SetBytes(int64(4 * n))
					b.ReportMetric(float64(took)/float64(floor), "x-floor")
				})
			}
		}
	}
}

// best is the shortest of n runs of f.
func best(n int, f func()) time.Duration {
	least := time.Hour
	for range n {
		t := time.Now()
		f()
		least = min(least, time.Since(t))
	}
	return least
}
