package compress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/kernels"
)

// draw picks k distinct indices of n, ascending, and finite values.
func draw(rng *rand.Rand, n, k int) ([]uint32, []float32) {
	seen := map[uint32]bool{}
	idx := make([]uint32, 0, k)
	for len(idx) < k {
		if i := uint32(rng.IntN(n)); !seen[i] {
			seen[i] = true
			idx = append(idx, i)
		}
	}
	slices.Sort(idx)
	val := make([]float32, k)
	for j := range val {
		val[j] = float32(rng.NormFloat64())
	}
	return idx, val
}

func TestSparseRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 7, 8, 9, 57, 1000, 4097, 1 << 20} {
		for _, k := range []int{0, 1, 2, n / 1000, n / 30, n / 4, n / 2, n - 1, n} {
			for _, full := range []bool{true, false} {
				if k < 0 || k > n || k > 1<<16 {
					continue
				}
				idx, val := draw(rng, n, k)
				p := &Sparse{N: n, Full: full}
				b := AppendSparse([]byte{42}, p, idx, val, 0)
				room := k
				if !full {
					room = min(n, k+3)
				}
				gi, gv := make([]uint32, room), make([]float32, room)
				got, rest, err := DecodeSparse(append(b[1:], 7, 8), p, gi, gv, 0)
				require.NoError(t, err, "n=%d k=%d", n, k)
				require.Equal(t, k, got)
				require.Equal(t, []byte{7, 8}, rest)
				require.Equal(t, idx, gi[:k])
				require.Equal(t, val, gv[:k])
			}
		}
	}
}

// Clustered indices are where the usual parameter is wrong, and a bitmap is best when half of everything is sent.
func TestIndexCodingAdapts(t *testing.T) {
	const n = 1 << 16
	run := make([]uint32, 512)
	for i := range run {
		run[i] = uint32(300 + i)
	}
	require.Less(t, len(appendIndices(nil, n, run)), 512*5/8, "a run costs far less than spread indices, 8.1 bits")
	half := make([]uint32, n/2)
	for i := range half {
		half[i] = uint32(2*i + i%2)
	}
	require.LessOrEqual(t, len(appendIndices(nil, n, half)), n/8+1)
}

// Evenly drawn indices cost at most 2 % more than their entropy, H(p)/p bits each, plus a byte of padding and prefix.
func TestIndexCostIsNearEntropy(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, p := range []float64{0.0001, 0.001, 0.004, 0.01, 0.0625, 0.25} {
		n := int(min(2000/p, 1<<21))
		k := int(p * float64(n))
		idx, _ := draw(rng, n, k)
		entropy := float64(n) * (-p*math.Log2(p) - (1-p)*math.Log2(1-p))
		bits := float64(8 * len(appendIndices(nil, n, idx)))
		// Rice is within 0.04 bits of Golomb; a quarter is its worst place, where H(p)/p is 3.245 bits and Rice takes 3.3.
		require.Less(t, bits, 1.02*entropy+8, "p=%g: %.3f bits an index, entropy %.3f", p, bits/float64(k), entropy/float64(k))
		t.Logf("p=%g: %.3f bits an index, entropy %.3f", p, bits/float64(k), entropy/float64(k))
	}
}

// payloads are one Sparse of every kind, with entries rounded as a compressor rounds them.
func payloads(rng *rand.Rand, n, k int) (all []*Sparse, idx []uint32, vals [][]float32, scale float32) {
	idx, val := draw(rng, n, k)
	scale = 0.03
	for _, full := range []bool{true, false} {
		for v := Float32; v <= Sign; v++ {
			for _, agreed := range []bool{false, true} {
				if agreed && v < Int8 {
					continue
				}
				rounded := slices.Clone(val)
				for j, x := range rounded {
					switch v {
					case Float16:
						var h [1]uint16
						kernels.ToHalf(kernels.F16, h[:], rounded[j:j+1])
						kernels.FromHalf(kernels.F16, rounded[j:j+1], h[:])
					case Int8:
						rounded[j] = float32(kernels.Int8Level(x, scale)) * scale
					case Sign:
						rounded[j] = float32(math.Copysign(float64(scale), float64(x)))
					}
				}
				all, vals = append(all, &Sparse{N: n, Full: full, Values: v, Agreed: agreed}), append(vals, rounded)
			}
		}
	}
	return all, idx, vals, scale
}

func TestValuesRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for _, k := range []int{0, 1, 7, 8, 9, 100} {
		all, idx, vals, scale := payloads(rng, 1000, k)
		for i, p := range all {
			b := AppendSparse(nil, p, idx, vals[i], scale)
			gi, gv := make([]uint32, k), make([]float32, k)
			got, rest, err := DecodeSparse(b, p, gi, gv, scale)
			require.NoError(t, err, "%+v", p)
			require.Equal(t, k, got)
			require.Empty(t, rest)
			require.Equal(t, idx, gi)
			require.Equal(t, vals[i], gv, "what is decoded has the bits of what was sent")
		}
	}
}

func TestHostileSparse(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, c := range []struct{ n, k int }{{1000, 5}, {64, 40}, {9, 9}, {100000, 100}} {
		all, idx, vals, scale := payloads(rng, c.n, c.k)
		for i, p := range all {
			t.Run(fmt.Sprintf("n=%d/k=%d/full=%v/values=%d/agreed=%v", c.n, c.k, p.Full, p.Values, p.Agreed), func(t *testing.T) {
				good := AppendSparse(nil, p, idx, vals[i], scale)
				gi, gv := make([]uint32, c.k), make([]float32, c.k)
				for cut := range good {
					_, _, err := DecodeSparse(good[:cut], p, gi, gv, scale)
					require.Error(t, err, "prefix of %d bytes", cut)
				}
				for bit := range 8 * len(good) {
					bad := slices.Clone(good)
					bad[bit/8] ^= 1 << (bit % 8)
					checkDecoded(t, bad, p, gi, gv)
				}
				require.Zero(t, testing.AllocsPerRun(10, func() { _, _, _ = DecodeSparse(good, p, gi, gv, scale) }))
			})
		}
	}
}

func TestCountsAreMinimal(t *testing.T) {
	p := &Sparse{N: 300}
	idx, val := make([]uint32, 200), make([]float32, 200)
	_, _, err := DecodeSparse([]byte{0x80, 0}, p, idx, val, 0)
	require.ErrorContains(t, err, "byte too many")
	_, _, err = DecodeSparse([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, p, idx, val, 0)
	require.Error(t, err)
	_, _, err = DecodeSparse([]byte{201, 1}, p, idx, val, 0)
	require.ErrorContains(t, err, "201, at most 200")
	k, _, err := DecodeSparse([]byte{0}, p, idx, val, 0)
	require.NoError(t, err)
	require.Zero(t, k)
}

// checkDecoded accepts an error or a well-formed result.
func checkDecoded(t *testing.T, b []byte, p *Sparse, gi []uint32, gv []float32) {
	t.Helper()
	k, rest, err := DecodeSparse(b, p, gi, gv, 1)
	if err != nil {
		return
	}
	require.LessOrEqual(t, len(rest), len(b))
	for j := range k {
		require.Less(t, int(gi[j]), p.N)
		require.False(t, j > 0 && gi[j] <= gi[j-1], "indices must ascend")
		require.False(t, gv[j]-gv[j] != 0, "values must be finite")
	}
}

func FuzzDecodeSparse(f *testing.F) {
	rng := rand.New(rand.NewPCG(6, 6))
	for _, n := range []int{500, 30} {
		all, idx, vals, scale := payloads(rng, n, 20)
		for i, p := range all {
			f.Add(AppendSparse(nil, p, idx, vals[i], scale), n, 20, p.Full, uint8(p.Values), p.Agreed)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, n, k int, full bool, values uint8, agreed bool) {
		if n < 0 || n > 1<<20 || k < 0 || k > n || k > 1<<12 {
			t.Skip()
		}
		p := &Sparse{N: n, Full: full, Values: Values(values % 4), Agreed: agreed}
		checkDecoded(t, b, p, make([]uint32, k), make([]float32, k))
	})
}

// A message of many payloads is read back payload by payload; its bits are padded once.
func TestMessage(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	var e Encoder
	var d Decoder
	for range 3 { // both are used again
		all, idx, vals, scale := payloads(rng, 1000, 11)
		packed, bytes := &Packed{Entropy: true}, []byte{1, 2, 3, 4, 5}
		e.Reset()
		alone := 0
		for i, p := range all {
			e.Sparse(p, idx, vals[i], scale)
			alone += len(AppendSparse(nil, p, idx, vals[i], scale))
		}
		e.Packed(packed, bytes)
		b := e.Message()
		require.Less(t, len(b), alone+len(AppendPacked(nil, packed, bytes))+1, "sharing bits must save padding")
		read := func(b []byte) error {
			if err := d.Reset(b); err != nil {
				return err
			}
			counts := make([]int, len(all))
			gi, gv := make([]uint32, 11), make([]float32, 11)
			for i, p := range all {
				var err error
				if counts[i], err = d.Head(p, gi); err != nil {
					return err
				}
				if counts[i] == 11 {
					require.True(t, slices.IsSorted(gi))
				}
			}
			if err := d.Body(); err != nil {
				return err
			}
			for i, p := range all {
				if err := d.Values(p, gv[:counts[i]], scale); err != nil {
					return err
				}
				for _, v := range gv[:counts[i]] {
					require.False(t, v-v != 0)
				}
			}
			if _, err := d.Packed(packed, make([]byte, 5)); err != nil {
				return err
			}
			return d.End()
		}
		require.NoError(t, read(b))
		for cut := range b {
			require.Error(t, read(b[:cut]), "prefix of %d bytes", cut)
		}
		require.Error(t, read(append(slices.Clone(b), 0)))
		for bit := range 8 * len(b) {
			bad := slices.Clone(b)
			bad[bit/8] ^= 1 << (bit % 8)
			_ = read(bad)
		}
		// And the right things come back.
		require.NoError(t, d.Reset(b))
		for _, p := range all {
			gi := make([]uint32, 11)
			k, err := d.Head(p, gi)
			require.NoError(t, err)
			require.Equal(t, idx, gi[:k])
		}
		require.NoError(t, d.Body())
		for i, p := range all {
			gv := make([]float32, 11)
			require.NoError(t, d.Values(p, gv, scale))
			require.Equal(t, vals[i], gv)
		}
		got := make([]byte, 5)
		n, err := d.Packed(packed, got)
		require.NoError(t, err)
		require.Equal(t, bytes, got[:n])
	}
	require.Error(t, d.Reset(nil))
	require.ErrorContains(t, d.Reset([]byte{Version + 1}), "version")
}
