package quant_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/quant"
)

// BenchmarkMethods times a rank's encoding (Start, without feedback) and the decoding of one rank's payload (the last Next), on a
// matrix with rows of 1000. x-floor is the time as a multiple of copying as many float32, one read and one write each, in the same run. Small
// matrices are taken in turn from a large one, because what is in a cache is not memory traffic. All times are the best of the iterations, for other
// work on the machine makes them longer only.
func BenchmarkMethods(b *testing.B) {
	ctx := context.Background()
	const most = 25_000_000
	s, err := kernels.CPU().NewStream()
	require.NoError(b, err)
	all := make([]float32, most)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range all {
		all[i] = float32(rng.NormFloat64())
	}
	v, err := kernels.NewBuf[float32](kernels.CPU(), most)
	require.NoError(b, err)
	out, err := kernels.NewBuf[float32](kernels.CPU(), most)
	require.NoError(b, err)
	for _, n := range []int{100_000, 6_500_000, most} {
		floor := copying(all, n)
		set := compress.Set{Parts: []compress.Part{compress.NewPart("w", n/1000, 1000)}, Size: 1, Dev: kernels.CPU()}
		for _, m := range []struct {
			name string
			make func() (compress.Compressor, error)
		}{
			{"onebit-row", func() (compress.Compressor, error) { return quant.NewOneBit(quant.OneBitConfig{Group: quant.Row}, set) }},
			{"onebit-column", func() (compress.Compressor, error) {
				return quant.NewOneBit(quant.OneBitConfig{Group: quant.Column}, set)
			}},
			{"threshold", func() (compress.Compressor, error) { return quant.NewThreshold(quant.ThresholdConfig{Tau: 2.5}, set) }},
			{"terngrad", func() (compress.Compressor, error) { return quant.NewTernGrad(quant.TernGradConfig{Clip: 2.5}, set) }},
			{"int8", func() (compress.Compressor, error) { return quant.NewInt8(quant.Int8Config{Block: 256}, set) }},
		} {
			c, err := m.make()
			require.NoError(b, err)
			var l loop
			var encoding, decoding time.Duration
			at := 0
			step := func() {
				if at+n > most {
					at = 0
				}
				if at == 0 {
					kernels.Write(s, v, all)
				}
				v, out := v.Slice(at, at+n), out.Slice(at, at+n)
				at += n
				t0 := time.Now()
				p, err := c.Start(ctx, s, v)
				encoding = time.Since(t0)
				require.NoError(b, err)
				got := l.back(p)
				t0 = time.Now()
				_, err = c.Next(ctx, s, *got, out)
				decoding = time.Since(t0)
				require.NoError(b, err)
			}
			for _, phase := range []struct {
				name string
				took *time.Duration
			}{{"encode", &encoding}, {"decode", &decoding}} {
				b.Run(fmt.Sprintf("%s/n=%d/%s", m.name, n, phase.name), func(b *testing.B) {
					b.ReportAllocs()
					best := time.Hour
					for range b.N {
						step()
						best = min(best, *phase.took)
					}
					b.ReportMetric(float64(best), "ns/op")
					b.ReportMetric(float64(4*n)/float64(best)*1e3, "MB/s")
					b.ReportMetric(float64(best)/floor, "x-floor")
				})
			}
		}
	}
}

// copying is how many nanoseconds a copy of n entries of x takes, the best of many, each from the next place and to it.
func copying(x []float32, n int) float64 {
	y := make([]float32, len(x))
	best := time.Hour
	for at := 0; at+n <= 8*len(x); at += n {
		from := at % (len(x) - n + 1)
		t0 := time.Now()
		copy(y[from:from+n], x[from:])
		best = min(best, time.Since(t0))
	}
	return float64(best)
}
