package compress

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/fse"
	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// ternaryStream packs n ternaries, four a byte, of which each is not 0 with probability p.
func ternaryStream(n int, p float64, seed uint64) (packed, one []byte, bitsEach float64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	packed, one = make([]byte, (n+3)/4), make([]byte, n)
	var count [3]int
	for i := range one {
		if rng.Float64() < p {
			one[i] = byte(1 + rng.IntN(2))
		}
		packed[i/4] |= one[i] << (i % 4 * 2)
		count[one[i]]++
	}
	for _, c := range count {
		if c > 0 {
			q := float64(c) / float64(n)
			bitsEach -= q * math.Log2(q)
		}
	}
	return packed, one, bitsEach
}

var shares = []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.382, 0.5}

func fseBlocks(b []byte, s *fse.Scratch) int {
	n := 0
	for len(b) > 0 {
		k := min(len(b), blockSize)
		c, err := fse.Compress(b[:k], s)
		if err != nil {
			c = b[:k]
		}
		n += len(c) + 4
		b = b[k:]
	}
	return n
}

func BenchmarkEntropyCoders(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		for _, p := range shares {
			packed, one, each := ternaryStream(n, p, 1)
			five := make([]byte, (n+4)/5)
			for i, t := range one {
				five[i/5] += t * [...]byte{1, 3, 9, 27, 81}[i%5]
			}
			entropy := each * float64(n) / 8
			run := func(name string, f func() int) {
				b.Run(fmt.Sprintf("n=%d/p=%g/%s", n, p, name), func(b *testing.B) {
					b.SetBytes(int64(n / 4))
					size := 0
					for b.Loop() {
						size = f()
					}
					b.ReportMetric(float64(size)/entropy, "x-entropy")
				})
			}
			run("ours", func() int { return len(appendEntropy(nil, packed)) })
			for _, log := range []uint8{11, 12} {
				s := &fse.Scratch{TableLog: log}
				run(fmt.Sprintf("fse%d-four", log), func() int { return fseBlocks(packed, s) })
				run(fmt.Sprintf("fse%d-five", log), func() int { return fseBlocks(five, s) })
				run(fmt.Sprintf("fse%d-one", log), func() int { return fseBlocks(one, s) })
			}
			idx, scratch := []uint32{}, make([]byte, 0, n)
			run("gaps", func() int {
				idx = idx[:0]
				for i := 0; i < len(packed); i += 8 {
					w := word(packed, i)
					for w := (w | w>>1) & low; w != 0; w &= w - 1 {
						idx = append(idx, uint32(4*i+tz(w)/2))
					}
				}
				w := bitWriter{b: appendIndices(scratch[:0], n, idx)}
				for _, i := range idx {
					w.put(uint64(packed[i/4]>>(i%4*2+1)&1), 1)
				}
				return len(w.flush())
			})
			var h huff0.Scratch
			run("huff0-four", func() int {
				size := 0
				for x := packed; len(x) > 0; {
					k := min(len(x), huff0.BlockSizeMax)
					c, _, err := huff0.Compress4X(x[:k], &h)
					if err != nil {
						c = x[:k]
					}
					size += len(c) + 4
					x = x[k:]
				}
				return size
			})
			enc, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
			run("zstd-four", func() int { scratch = enc.EncodeAll(packed, scratch[:0]); return len(scratch) })
		}
	}
	_ = binary.LittleEndian
	_ = require.New
}
func tz(w uint64) int {
	n := 0
	for w&1 == 0 {
		w >>= 1
		n++
	}
	return n
}
