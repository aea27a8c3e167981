package kernels

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The answers were published with Random123.
func TestPhiloxKnownAnswers(t *testing.T) {
	const all = 0xffffffff
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{all, all, all, all}, [2]uint32{all, all}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		require.Equal(t, c.want, Philox(c.ctr, c.key))
	}
	require.Equal(t, [2]uint32{0x90abcdef, 0x12345678}, Key(0x1234567890abcdef))
}

func TestNormalIsNormal(t *testing.T) {
	const n = 1 << 16
	x := make([]float32, n)
	Normal(x, [4]uint32{5, 1, 2, 3}, Key(9))
	var sum, sum2, cross float64
	for i, v := range x {
		sum += float64(v)
		sum2 += float64(v) * float64(v)
		if i%2 == 1 {
			cross += float64(v) * float64(x[i-1])
		}
	}
	// Five standard deviations of each statistic.
	require.InDelta(t, 0, sum/n, 5/math.Sqrt(n))
	require.InDelta(t, 1, sum2/n, 5*math.Sqrt(2)/math.Sqrt(n))
	require.InDelta(t, 0, cross/(n/2), 5/math.Sqrt(n/2))
	// Kolmogorov and Smirnov's distance from the normal distribution: over 2/sqrt(n) by chance with probability 7e-4.
	slices.Sort(x)
	worst := 0.0
	for i, v := range x {
		p := 0.5 * math.Erfc(-float64(v)/math.Sqrt2)
		worst = max(worst, math.Abs(p-float64(i)/n), math.Abs(p-float64(i+1)/n))
	}
	require.Less(t, worst, 2/math.Sqrt(n))
}

// Bits are pinned, because ranks on different machines must agree; and a shorter vector is the beginning of a longer one.
func TestNormalBits(t *testing.T) {
	want := []float32{-0x1.b101eep+00, -0x1.21ccaep+00, 0x1.4df4a4p-02, -0x1.74bcaap+00, -0x1.3e09bcp+00, 0x1.a0645ep+00}
	long := make([]float32, 9)
	Normal(long, [4]uint32{0, 0, 0, 1}, Key(42))
	same(t, want, long[:len(want)])
	for n := range long {
		x := make([]float32, n)
		Normal(x, [4]uint32{0, 0, 0, 1}, Key(42))
		same(t, long[:n], x)
	}
	other := make([]float32, 9)
	for _, ctr := range [][4]uint32{{0, 1, 0, 1}, {0, 0, 1, 1}, {0, 0, 0, 2}} {
		Normal(other, ctr, Key(42))
		require.NotEqual(t, long, other)
	}
}

func TestElementaryFunctions(t *testing.T) {
	for _, w := range []uint32{
		0, 1, 2, 1 << 28, 1<<29 - 1, 1 << 29, 1 << 30, 3 << 29, 1 << 31, 0xb504f333, 0xb504f334, 3 << 30, 7 << 29, 1<<32 - 1, 0x9e3779b9,
	} {
		u := float64(w)*0x1p-32 + 0x1p-32
		require.InDelta(t, math.Log(u), ln(u), 4e-16*math.Abs(math.Log(u))+1e-25)
		sin, cos := turn(w)
		wantSin, wantCos := math.Sincos(2 * math.Pi * float64(w) * 0x1p-32)
		require.InDelta(t, wantSin, sin, 2e-15, "%x", w) // the reference rounds its argument, up to 2 pi
		require.InDelta(t, wantCos, cos, 2e-15, "%x", w)
	}
	// The smallest uniform is the longest radius; one is zero, not minus zero or NaN.
	x, y := boxMuller(0, 0)
	require.InDelta(t, math.Sqrt(64*math.Ln2), x, 1e-6)
	require.Zero(t, y)
	x, _ = boxMuller(0xffffffff, 0)
	require.Zero(t, x)
}

func BenchmarkNormal(b *testing.B) {
	x := make([]float32, 1<<14)
	b.SetBytes(int64(4 * len(x)))
	for b.Loop() {
		Normal(x, [4]uint32{}, [2]uint32{})
	}
}
