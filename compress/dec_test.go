package compress

import (
	"fmt"
	"github.com/klauspost/compress/fse"
	"github.com/klauspost/compress/huff0"
	"testing"
)

func BenchmarkDec(b *testing.B) {
	for _, p := range []float64{0.05, 0.1, 0.15, 0.2, 0.3, 0.5} {
		packed, _, _ := ternaryStream(4*blockSize, p, 1)
		s := &fse.Scratch{TableLog: 12}
		c, _ := fse.Compress(packed, s)
		c = append([]byte(nil), c...)
		b.Run(fmt.Sprintf("fse/%g", p), func(b *testing.B) {
			b.SetBytes(int64(len(packed)))
			b.ReportAllocs()
			for b.Loop() {
				s.DecompressLimit = len(packed)
				o, err := fse.Decompress(c, s)
				if err != nil || len(o) != len(packed) {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(c)), "size")
		})
		var h huff0.Scratch
		h.Reuse = huff0.ReusePolicyNone
		hc, _, err := huff0.Compress4X(packed, &h)
		if err != nil {
			b.Fatal(err)
		}
		hc = append([]byte(nil), hc...)
		b.Run(fmt.Sprintf("huffenc/%g", p), func(b *testing.B) {
			b.SetBytes(int64(len(packed)))
			b.ReportAllocs()
			for b.Loop() {
				huff0.Compress4X(packed, &h)
			}
		})
		out := make([]byte, len(packed))
		var d *huff0.Scratch = new(huff0.Scratch)
		b.Run(fmt.Sprintf("huff/%g", p), func(b *testing.B) {
			b.SetBytes(int64(len(packed)))
			b.ReportAllocs()
			for b.Loop() {
				s2, rem, err := huff0.ReadTable(hc, d)
				if err != nil {
					b.Fatal(err)
				}
				o, err := s2.Decoder().Decompress4X(out[:0:len(out)], rem)
				if err != nil || len(o) != len(packed) {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(hc)), "size")
		})
	}
}
