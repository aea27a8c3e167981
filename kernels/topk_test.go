package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func takeTopK(e *env, x []float32, k int) (idx []uint32, val, rest []float32) {
	b := put(e, x)
	bi, bv, bn := put(e, make([]uint32, k)), put(e, make([]float32, k)), put(e, []uint32{0})
	TakeTopK(e.s, bi, bv, bn, b, k, put(e, make([]uint32, TopKWork(len(x), k))))
	require.Equal(e.t, []uint32{uint32(k)}, get(e, bn))
	return get(e, bi), get(e, bv), get(e, b)
}

func checkTopK(e *env, x []float32, k int) {
	e.t.Helper()
	idx, val, rest := takeTopK(e, x, k)
	require.Equal(e.t, slowTopK(x, k), idx, "k=%d", k)
	want, sent := append([]float32(nil), x...), make([]float32, k)
	for j, i := range idx {
		sent[j], want[i] = x[i], 0
	}
	same(e.t, sent, val)
	same(e.t, want, rest)
}

func TestTakeTopK(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		x := e.floats()
		for _, k := range []int{0, 1, 2, 5, e.n / 1000, e.n / 100, e.n / 4, e.n/2 + 1, e.n - 1, e.n} {
			if k >= 0 && k <= e.n {
				checkTopK(e, x, k)
			}
		}
	})
}

// The inputs that selections elsewhere spin on, send nothing for, or cut off by position.
func TestTakeTopKHardInputs(t *testing.T) {
	const n = 20000
	fill := func(f func(i int) float32) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = f(i)
		}
		return x
	}
	rng := rand.New(rand.NewPCG(1, 2))
	cases := map[string][]float32{
		"zeros":         fill(func(int) float32 { return 0 }),
		"equal":         fill(func(i int) float32 { return float32(1 - 2*(i&1)) }),
		"one outlier":   fill(func(i int) float32 { return map[bool]float32{true: 1e30, false: 1e-3}[i == 777] }),
		"one nonzero":   fill(func(i int) float32 { return map[bool]float32{true: 1, false: 0}[i == 19999] }),
		"two values":    fill(func(i int) float32 { return float32(1 + i%2) }),
		"ascending":     fill(func(i int) float32 { return float32(i) }),
		"descending":    fill(func(i int) float32 { return float32(n - i) }),
		"one bin":       fill(func(i int) float32 { return 1 + float32(rng.IntN(1000))*0x1p-20 }),
		"low bits only": fill(func(i int) float32 { return math.Float32frombits(0x3f800000 + uint32(rng.IntN(16))) }),
		"all at front":  fill(func(i int) float32 { return map[bool]float32{true: 5, false: 0.001}[i < 900] + rng.Float32()/1e4 }),
		"columns":       fill(func(i int) float32 { return map[bool]float32{true: 9, false: 1}[i%64 == 0] * rng.Float32() }),
		"non-finite": fill(func(i int) float32 {
			return [...]float32{float32(math.NaN()), float32(math.Inf(-1)), 3, float32(math.Inf(1)), -4}[i%5]
		}),
	}
	for _, k := range []int{200, 5000} {
		for name, seen := range map[string]float32{"small": 1, "large": 3} { // what a sample for this k sees is among the smallest, or the largest
			at, sample := fill(func(i int) float32 { return float32(i) }), make([]uint32, sampleSize(n, k))
			draw(at, k, sample)
			x := fill(func(int) float32 { return 2 + rng.Float32() })
			for _, m := range sample {
				x[int(math.Float32frombits(m))] = seen + rng.Float32()
			}
			cases[fmt.Sprintf("sample for %d is %s", k, name)] = x
		}
	}
	s, err := CPU().NewStream()
	require.NoError(t, err)
	for name, x := range cases {
		for _, k := range []int{1, 19, 20, 21, 200, 624, 625, 626, 5000, n} {
			t.Run(fmt.Sprintf("%s/k=%d", name, k), func(t *testing.T) {
				checkTopK(&env{t: t, s: s, n: n}, x, k)
			})
		}
	}
}

func FuzzTakeTopK(f *testing.F) {
	f.Add(uint64(1), 5000, 5, uint8(3))
	f.Add(uint64(2), 16000, 70, uint8(30))
	f.Add(uint64(3), 20000, 5000, uint8(9))
	f.Fuzz(func(t *testing.T, seed uint64, n, k int, spread uint8) {
		if n < 1 || n > 20_000 || k < 0 || k > n {
			t.Skip()
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		x := make([]float32, n)
		for i := range x {
			x[i] = math.Float32frombits(rng.Uint32()&(1<<31) | 0x3f800000 + rng.Uint32()>>(spread&31))
		}
		s, _ := CPU().NewStream()
		checkTopK(&env{t: t, s: s, n: n}, x, k)
	})
}

// BenchmarkTakeTopK reports the time as a multiple of copying as many float32 in the same run, the best of the iterations each.
func BenchmarkTakeTopK(b *testing.B) {
	for _, n := range []int{100_000, 6_500_000, 25_000_000} {
		for _, ratio := range []float64{0.001, 0.01, 0.25} {
			b.Run(fmt.Sprintf("n=%d/ratio=%g", n, ratio), func(b *testing.B) {
				e := &env{n: n, rng: rand.New(rand.NewPCG(1, 1))}
				e.s, _ = CPU().NewStream()
				src := make([]float32, n)
				for i := range src {
					src[i] = float32(e.rng.NormFloat64())
				}
				k := int(ratio * float64(n))
				x, _ := NewBuf[float32](CPU(), n)
				idx, _ := NewBuf[uint32](CPU(), k)
				val, _ := NewBuf[float32](CPU(), k)
				cnt, _ := NewBuf[uint32](CPU(), 1)
				work, _ := NewBuf[uint32](CPU(), TopKWork(n, k))
				host, _ := Host(x)
				floor := best(8, func() { copy(host, src) })
				b.SetBytes(int64(4 * n))
				b.ReportAllocs()
				took := time.Hour
				for b.Loop() {
					b.StopTimer()
					copy(host, src)
					b.StartTimer()
					took = min(took, best(1, func() { TakeTopK(e.s, idx, val, cnt, x, k, work) }))
				}
				b.ReportMetric(float64(took)/float64(floor), "x-floor")
			})
		}
	}
}
