package compress

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/fse"
	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// ternaryStream draws n ternaries, of which each is not 0 with probability p: one a byte, and four a byte. entropy is in bits each, of
// the counts that were drawn.
func ternaryStream(n int, p float64, seed uint64) (one, four []byte, entropy float64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	one, four = make([]byte, n), make([]byte, (n+3)/4)
	var count [3]int
	for i := range one {
		if rng.Float64() < p {
			one[i] = byte(1 + rng.IntN(2))
		}
		four[i/4] |= one[i] << (i % 4 * 2)
		count[one[i]]++
	}
	for _, c := range count {
		if c > 0 {
			q := float64(c) / float64(n)
			entropy -= q * math.Log2(q)
		}
	}
	return one, four, entropy
}

var shares = []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.12, 0.126, 0.15, 0.2, 0.3, 0.382, 0.5}

// The project asks for ternaries within 5 % of their entropy from 100 000 elements on.
func TestTernariesAreNearEntropy(t *testing.T) {
	for _, n := range []int{100_000, 1_000_003} {
		for _, p := range shares {
			_, four, entropy := ternaryStream(n, p, 1)
			bits := float64(8*len(AppendPacked(nil, &Packed{Full: true, Entropy: true}, four))) / float64(n)
			require.LessOrEqual(t, bits, 1.05*entropy, "n=%d p=%g", n, p)
			t.Logf("n=%d p=%g: %.4f bits each, entropy %.4f", n, p, bits, entropy)
		}
	}
}

// Sums of the ternaries of some ranks, a byte each, which owners hand out.
func TestSumsAreNearEntropy(t *testing.T) {
	const n = 100_001
	for _, ranks := range []int{2, 4, 16, 64} {
		for _, p := range []float64{0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5} {
			sums := make([]byte, n)
			for r := range ranks {
				one, _, _ := ternaryStream(n, p, uint64(r))
				for i, x := range one {
					sums[i] += [3]byte{0, 1, 255}[x]
				}
			}
			var count [256]float64
			for _, x := range sums {
				count[x]++
			}
			entropy := 0.0
			for _, c := range count {
				if c > 0 {
					entropy -= c / float64(n) * math.Log2(c/float64(n))
				}
			}
			bits := float64(8*len(AppendPacked(nil, &Packed{Full: true, Entropy: true}, sums))) / float64(n)
			t.Logf("%d ranks, p=%g: %.4f bits each, entropy %.4f", ranks, p, bits, entropy)
			const table = 0.006 // bits each, of some 50 bytes a block
			require.LessOrEqual(t, bits, 1.01*entropy+table, "%d ranks, p=%g", ranks, p)
		}
	}
}

// blobs are bytes that reach every coding, at lengths around a block.
func blobs() [][]byte {
	rng := rand.New(rand.NewPCG(2, 2))
	all := [][]byte{{}, {0}, {1}, {0xff}}
	for _, n := range []int{2, 7, 8, 9, 1000, blockSize - 1, blockSize, blockSize + 1, 2*blockSize + 5} {
		noise, constant, levels, rare := make([]byte, n), make([]byte, n), make([]byte, n), make([]byte, n)
		for i := range noise {
			noise[i], constant[i] = byte(rng.Uint32()), 0x55
			if rng.IntN(40) == 0 {
				rare[i] = byte(rng.Uint32()) // seldom, but not ternaries
			}
			levels[i] = byte(int8(max(-127, min(127, 20*rng.NormFloat64()))))
		}
		all = append(all, make([]byte, n), constant, noise, levels, rare)
		for _, p := range []float64{0.002, 0.1, 0.124, 0.126, 0.3, 1} {
			_, four, _ := ternaryStream(4*n, p, uint64(n))
			all = append(all, four)
		}
	}
	return all
}

var packedKinds = []Packed{{}, {Full: true}, {Entropy: true}, {Full: true, Entropy: true}}

func TestPackedRoundTrip(t *testing.T) {
	seen := map[byte]bool{}
	for _, b := range blobs() {
		for _, p := range packedKinds {
			coded := AppendPacked([]byte{42}, &p, b)[1:]
			require.LessOrEqual(t, len(coded), len(b)+3+len(b)/blockSize+1, "never longer than the bytes, a length and a byte a block")
			room := make([]byte, len(b))
			if !p.Full {
				room = make([]byte, len(b)+3)
			}
			n, rest, err := DecodePacked(append(slices.Clip(coded), 7, 8), &p, room)
			require.NoError(t, err)
			require.Equal(t, []byte{7, 8}, rest)
			require.Equal(t, len(b), n)
			require.Equal(t, b, room[:n:n])
			if p.Full && p.Entropy && len(b) > 0 {
				seen[coded[0]] = true
			}
		}
	}
	require.Len(t, seen, 5, "not every coding was reached")
}

func TestHostilePacked(t *testing.T) {
	for _, b := range blobs() {
		if len(b) > 1000 {
			continue
		}
		for _, p := range packedKinds {
			good := AppendPacked(nil, &p, b)
			room := make([]byte, len(b))
			for cut := range good {
				_, _, err := DecodePacked(good[:cut], &p, room)
				require.Error(t, err, "prefix of %d of %d bytes", cut, len(good))
			}
			for bit := range 8 * len(good) {
				bad := slices.Clone(good)
				bad[bit/8] ^= 1 << (bit % 8)
				checkUnpacked(t, bad, &p, room)
			}
		}
	}
}

// A table of FSE that nobody writes is refused before it is made.
func TestPackedRefusesLargeTables(t *testing.T) {
	levels := make([]byte, 5000)
	for i := range levels {
		levels[i] = byte(3 * (i % 7) * (i % 5))
	}
	p := &Packed{Full: true, Entropy: true}
	coded := AppendPacked(nil, p, levels)
	require.Equal(t, byte(ans), coded[0])
	_, size := binary.Uvarint(coded[1:])
	coded[1+size] |= 15
	_, _, err := DecodePacked(coded, p, make([]byte, len(levels)))
	require.ErrorContains(t, err, "FSE of 20 bits, want at most 12")
}

// checkUnpacked accepts an error or a count that fits.
func checkUnpacked(t *testing.T, b []byte, p *Packed, room []byte) {
	t.Helper()
	n, rest, err := DecodePacked(b, p, room)
	if err != nil {
		return
	}
	require.LessOrEqual(t, n, len(room))
	require.True(t, !p.Full || n == len(room), "a full payload must be full")
	require.LessOrEqual(t, len(rest), len(b))
}

func FuzzDecodePacked(f *testing.F) {
	for _, b := range blobs() {
		if len(b) <= 1000 {
			for _, p := range packedKinds {
				f.Add(AppendPacked(nil, &p, b), len(b), p.Full, p.Entropy)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, n int, full, entropy bool) {
		if n < 0 || n > 3*blockSize {
			t.Skip()
		}
		checkUnpacked(t, b, &Packed{Full: full, Entropy: entropy}, make([]byte, n))
	})
}

// A step allocates nothing, garbage collections between or not, and what hostile bytes announce is not allocated either.
func TestPackedAllocatesNothing(t *testing.T) {
	p := &Packed{Full: true, Entropy: true}
	for _, share := range []float64{0, 0.01, 0.3, -0.3} {
		one, b, _ := ternaryStream(12*blockSize, math.Abs(share), 3)
		if share < 0 { // not ternaries
			b = one
			for i, x := range b {
				b[i] = x * 3
			}
		}
		coded := AppendPacked(nil, p, b)
		room := make([]byte, len(b))
		dst := make([]byte, 0, len(b))
		require.Zero(t, testing.AllocsPerRun(3, func() {
			AppendPacked(dst, p, b)
			_, _, _ = DecodePacked(coded, p, room)
		}), "share %g", share)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		AppendPacked(dst, p, b)
		_, _, err := DecodePacked(coded, p, room)
		require.NoError(t, err)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<10))
	}
}

// BenchmarkEntropyCoders compares coders: MB/s are of the bytes with four ternaries each, x-entropy is the coded size.
func BenchmarkEntropyCoders(b *testing.B) {
	const n = 1_000_000
	for _, p := range shares {
		one, four, entropy := ternaryStream(n, p, 1)
		five := make([]byte, (n+4)/5)
		for i, x := range one {
			five[i/5] += x * [...]byte{1, 3, 9, 27, 81}[i%5]
		}
		run := func(name string, code func() int) {
			b.Run(fmt.Sprintf("p=%g/%s", p, name), func(b *testing.B) {
				b.SetBytes(n / 4)
				size := 0
				for b.Loop() {
					size = code()
				}
				b.ReportMetric(float64(8*size)/(entropy*n), "x-entropy")
				b.ReportMetric(entropy, "bits")
			})
		}
		dst := make([]byte, 0, n)
		run("ours", func() int { dst = appendEntropy(dst[:0], four); return len(dst) })
		run("ours-decode", func() int {
			if _, err := decodeEntropy(dst, four); err != nil {
				b.Fatal(err)
			}
			return len(dst)
		})
		c := &coder{idx: make([]uint32, n)}
		run("gaps", func() int { k, _ := ternaries(four); return len(c.appendGaps(dst[:0], four, k)) })
		s := fse.Scratch{TableLog: 12}
		h := huff0.Scratch{Reuse: huff0.ReusePolicyNone}
		for _, c := range []struct {
			name string
			b    []byte
		}{{"four", four}, {"five", five}, {"one", one}} {
			run("fse-"+c.name, func() int {
				return blocks(c.b, func(b []byte) ([]byte, error) { return fse.Compress(b, &s) })
			})
			run("huff0-"+c.name, func() int {
				return blocks(c.b, func(b []byte) ([]byte, error) { out, _, err := huff0.Compress4X(b, &h); return out, err })
			})
		}
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		require.NoError(b, err)
		run("zstd", func() int { return len(z.EncodeAll(four, dst[:0])) })
	}
}

// blocks is the size of b coded in blocks, with three bytes for each one's length.
func blocks(b []byte, code func([]byte) ([]byte, error)) (size int) {
	for len(b) > 0 {
		n := min(len(b), blockSize)
		coded, err := code(b[:n])
		if err != nil {
			coded = b[:n]
		}
		size += len(coded) + 3
		b = b[n:]
	}
	return size
}

// Sign bits are as good as random: no coder helps, and none is asked to.
func BenchmarkSignBits(b *testing.B) {
	rng := rand.New(rand.NewPCG(4, 4))
	x := make([]byte, 1<<20)
	for i := range x {
		x[i] = byte(rng.Uint32())
	}
	b.SetBytes(int64(len(x)))
	size := 0
	for b.Loop() {
		size = len(appendEntropy(nil, x))
	}
	b.ReportMetric(float64(size)/float64(len(x)), "x-plain")
}
