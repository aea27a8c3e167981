package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAssemblyMatchesGo compares what each operation leaves behind with and without assembly, to the bit, at lengths around a group of entries
// and around a piece.
func TestAssemblyMatchesGo(t *testing.T) {
	if !avx2 {
		t.Skip("there is no assembly here")
	}
	defer func() { avx2 = true }()
	lengths := []int{piece - 1, piece, piece + 1, 2*piece + 45}
	for n := range 100 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		e := &env{t: t, n: n, off: n % 5, rng: rand.New(rand.NewPCG(uint64(n), 7))}
		e.s, _ = CPU().NewStream()
		x, y := e.floats(), e.floats()
		wild := make([]float32, n) // any bits at all
		for i := range wild {
			wild[i] = math.Float32frombits(e.rng.Uint32())
			if i%2 == 1 { // and such as binary16 can hold
				wild[i] = float32(e.rng.NormFloat64() * math.Exp(5*e.rng.NormFloat64()-5))
			}
		}
		floats := func(n int) []float32 { return (&env{n: n, rng: rand.New(rand.NewPCG(uint64(n), 8))}).floats() }
		codes := make([]byte, 9*n+8)
		for i := range codes {
			codes[i] = byte(e.rng.Uint32())
		}
		type result struct {
			bytes  []byte
			floats []float32
		}
		ops := map[string]func() result{
			"TernaryScale": func() result {
				scale := put(e, []float32{0, 0})
				TernaryScale(e.s, scale.Slice(0, 1), put(e, x), 0)
				TernaryScale(e.s, scale.Slice(1, 2), put(e, x), 2.5)
				return result{floats: get(e, scale)}
			},
			"DrawTernary": func() result {
				out, scale := put(e, make([]byte, TernaryBytes(n))), put(e, []float32{1.5})
				DrawTernary(e.s, out, put(e, x), scale, scale, Draw{Rank: 3, Step: 5, ID: 0xdeadbeef, Key: Key(1 << 40)})
				return result{bytes: get(e, out)}
			},
			"Correct": func() result {
				bu, bv := put(e, y), put(e, x)
				Correct(e.s, bu, bv, put(e, slices.Concat(y[n/2:], x[:n/2])), 0.9, false)
				return result{floats: slices.Concat(get(e, bu), get(e, bv))}
			},
			"LowRank": func() result {
				var r result
				for _, rows := range []int{1, 3, 4, 9} {
					for rank := 1; rank <= 3; rank++ {
						cols := n / rows
						m, p, q := put(e, x[:rows*cols]), put(e, floats(rows*rank)), put(e, floats(cols*rank))
						MulRight(e.s, p, m, q, rank)
						MulLeft(e.s, q, m, p, rank)
						SubOuter(e.s, m, p, q, rank)
						r.floats = slices.Concat(r.floats, get(e, p), get(e, q), get(e, m))
						Outer(e.s, m, p, q, rank)
						r.floats = append(r.floats, get(e, m)...)
					}
				}
				return r
			},
			"Half": func() result {
				var r result
				for _, f := range []DType{F16, BF16} {
					h, back := make([]uint16, n), make([]float32, n)
					ToHalf(f, h, wild)
					FromHalf(f, back, h)
					for _, w := range h {
						r.bytes = binary.LittleEndian.AppendUint16(r.bytes, w)
					}
					r.floats = append(r.floats, back...)
				}
				return r
			},
			"TakeAbove": func() result {
				var r result
				for _, tau := range []float32{0.01, 1, 5, 1000} {
					rest, idx, val := put(e, x), put(e, make([]uint32, n)), put(e, make([]float32, n))
					count, more := put(e, []uint32{0}), put(e, []float32{0, 0})
					TakeAbove(e.s, idx, val, count, more.Slice(0, 1), more.Slice(1, 2), rest, tau)
					found := int(get(e, count)[0])
					for _, i := range get(e, idx)[:found] {
						r.bytes = binary.LittleEndian.AppendUint32(r.bytes, i)
					}
					r.floats = slices.Concat(r.floats, get(e, rest), get(e, val)[:found], get(e, more))
				}
				return r
			},
			"AddTernary": func() result {
				b := put(e, y)
				AddTernary(e.s, b, 0.3, put(e, codes[:TernaryBytes(n)]), put(e, []byte{1, 2, 3, 63}))
				return result{floats: get(e, b)}
			},
			"BlockInt8": func() result {
				var r result
				for _, block := range []int{max(n, 1), 33} {
					b, rest, msg := put(e, y), put(e, x), put(e, make([]byte, BlockInt8Bytes(n, block)))
					TakeBlockInt8(e.s, msg, rest, block)
					AddBlockInt8(e.s, b, 0.3, msg, block)
					r.bytes = append(r.bytes, get(e, msg)...)
					r.floats = slices.Concat(r.floats, get(e, rest), get(e, b))
				}
				return r
			},
			"AddOneBit": func() result {
				var r result
				for _, g := range []Groups{{1, n, false}, {1, n, true}} {
					b := put(e, y)
					AddOneBit(e.s, b, 0.3, put(e, codes[:OneBitBytes(g)]), g)
					r.floats = append(r.floats, get(e, b)...)
				}
				return r
			},
			"TakeOneBit": func() result {
				var r result
				for _, g := range []Groups{{1, n, false}, {1, n, true}} {
					b, msg := put(e, x), put(e, make([]byte, OneBitBytes(g)))
					TakeOneBit(e.s, msg, b, g)
					r.bytes, r.floats = append(r.bytes, get(e, msg)...), append(r.floats, get(e, b)...)
				}
				return r
			},
		}
		for name, op := range ops {
			t.Run(fmt.Sprintf("%s/n=%d", name, n), func(t *testing.T) {
				avx2 = false
				want := op()
				avx2 = true
				got := op()
				require.Equal(t, want.bytes, got.bytes)
				same(t, want.floats, got.floats)
			})
		}
		e.checkGuards()
	}
}
