// Command ternary writes ternary_amd64.s.
package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	. "github.com/gradpress/gradpress/kernels/_generate/simd"
)

func main() {
	Start()
	spread()
	draw()
	add()
	Generate()
}

func spread() {
	Func("spreadAVX2", "func(x []float32, first float64, most *[8]uint32, sums, squares *[16]float64) (n int)",
		"spreadAVX2 is, for the first n = len(x)&^15 entries, with j = i%16",
		"",
		"\tmost[j%8] = max(most[j%8], the bits of |x[i]|)",
		"\td := float64(x[i]) - first; sums[j] += d; squares[j] += d * d, the product rounded before")
	most, sums, squares := Ptr("most"), Ptr("sums"), Ptr("squares")
	first, m := YMM(), YMM()
	VBROADCASTSD(Addr("first"), first)
	VMOVUPS(Mem{Base: most}, m)
	var s, q [4]VecVirtual
	for k := range s {
		s[k], q[k] = YMM(), YMM()
		VMOVUPS(Mem{Base: sums, Disp: 32 * k}, s[k])
		VMOVUPS(Mem{Base: squares, Disp: 32 * k}, q[k])
	}
	mag := Const(math.MaxInt32)
	n := Loop("x", 16, func(x Mem, _ Register) {
		for half := range 2 {
			v := YMM()
			VPAND(x.Offset(32*half), mag, v)
			VPMAXUD(v, m, m)
		}
		for k := range s {
			d := YMM()
			VCVTPS2PD(x.Offset(16*k), d)
			VSUBPD(first, d, d)
			VADDPD(d, s[k], s[k])
			VMULPD(d, d, d)
			VADDPD(d, q[k], q[k])
		}
	})
	VMOVUPS(m, Mem{Base: most})
	for k := range s {
		VMOVUPS(s[k], Mem{Base: sums, Disp: 32 * k})
		VMOVUPS(q[k], Mem{Base: squares, Disp: 32 * k})
	}
	End(n)
}

// draw has four blocks of Philox a register, one in each 64 bits: a product of 32 bits fills them, and what the high half holds otherwise is not
// looked at. Two registers a word go side by side, to hide the latency.
func draw() {
	Func("drawTernaryAVX2", "func(codes []uint8, x []float32, block, rank, step, id, k0, k1 uint32, clip, scale float32) (n int)",
		"drawTernaryAVX2 is, for the first n = len(x)&^31 entries,",
		"",
		"\tu := word i%4 of Philox(block + i/4, rank, step, id; k0, k1) >> 8",
		"\tcode i = u*2^-24*scale < min(|x[i]|, clip) ? the sign of x[i] : 0",
		"",
		"A fused multiply and subtract rounds once, and so has the right sign.")
	keys := AllocLocal(20 * 32)
	key := func(round, word int) Mem { return keys.Offset(32 * (2*round + word)) }
	for word, name := range []string{"k0", "k1"} {
		k := Spread(name)
		weyl := Const([]uint32{0x9e3779b9, 0xbb67ae85}[word])
		for round := range 10 {
			VMOVUPS(k, key(round, word))
			VPADDD(weyl, k, k)
		}
	}
	codes := Ptr("codes")
	block := Spread("block")
	VPADDD(Data(0, 0, 1, 0, 2, 0, 3, 0), block, block)
	clip, scale := Spread("clip"), Spread("scale")
	n := Loop("x", 32, func(x Mem, i Register) {
		var c [2][4]VecVirtual
		for set := range c {
			c[set] = [4]VecVirtual{YMM(), Spread("rank"), Spread("step"), Spread("id")}
			VMOVUPS(block, c[set][0])
			VPADDD(Data(4, 0), block, block)
		}
		for round := range 10 {
			for set := range c {
				c0, c1, c2, c3 := c[set][0], c[set][1], c[set][2], c[set][3]
				a, b, hi := YMM(), YMM(), YMM()
				VPMULUDQ(Data(0xd2511f53), c0, a)
				VPMULUDQ(Data(0xcd9e8d57), c2, b)
				VPSRLQ(U8(32), b, hi)
				VPXOR(key(round, 0), c1, c1)
				VPXOR(hi, c1, c1)
				VPSRLQ(U8(32), a, c0)
				VPXOR(key(round, 1), c3, c3)
				VPXOR(c0, c3, c3)
				c[set] = [4]VecVirtual{c1, b, c3, a}
			}
		}
		var pairs [2]VecVirtual
		for set := range c {
			w := c[set]
			VPSLLQ(U8(32), w[1], w[1])
			VPBLENDD(U8(0xaa), w[1], w[0], w[0])
			VPSLLQ(U8(32), w[3], w[3])
			VPBLENDD(U8(0xaa), w[3], w[2], w[2])
			even, odd := YMM(), YMM() // blocks 0 and 2, blocks 1 and 3
			VPUNPCKLQDQ(w[2], w[0], even)
			VPUNPCKHQDQ(w[2], w[0], odd)
			for j, u := range []VecVirtual{even, odd} {
				v, m := YMM(), YMM()
				from := x.Offset(64*set + 16*j)
				VMOVUPS(from, v.AsX())
				VINSERTF128(U8(1), from.Offset(32), v, v)
				VPSRLD(U8(8), u, u)
				VCVTDQ2PS(u, u)
				VMULPS(Data(math.Float32bits(0x1p-24)), u, u)
				VPAND(Data(math.MaxInt32), v, m)
				VPMINUD(clip, m, m)
				VFMSUB213PS(m, scale, u)
				VPAND(u, v, v)
				VPSRLD(U8(31), u, u)
				VPSRLD(U8(31), v, v)
				VPADDD(v, u, u)
			}
			pairs[set] = even
			VPACKSSDW(odd, even, even) // blocks 0 1 | 2 3
		}
		b := pairs[0]
		VPACKSSWB(pairs[1], b, b)          // blocks 0 1 4 5 | 2 3 6 7, a byte an entry
		VPMADDUBSW(Data(0x04010401), b, b) // two entries in 16 bits
		VPMADDWD(Data(0x00100001), b, b)   // a block in 32
		lo, hi := XMM(), XMM()
		VEXTRACTI128(U8(1), b, hi)
		VPUNPCKLQDQ(hi, b.AsX(), lo)
		VPUNPCKHQDQ(hi, b.AsX(), hi)
		VPACKUSDW(hi, lo, lo)
		VPACKUSWB(lo, lo, lo)
		VMOVQ(lo, Mem{Base: codes})
		ADDQ(U8(8), codes)
	})
	End(n)
}

func add() {
	Func("addTernaryAVX2", "func(y []float32, codes []uint8, a float32) (n int)",
		"addTernaryAVX2 is y[i] += {0, a, -a, 0}[code i], for the first n = len(y)&^31 entries.")
	codes := Ptr("codes")
	values, t := Spread("a"), Const(0, 0, 1<<31, 0)
	VXORPS(t, values, values)
	VANDPS(Data(0, math.MaxUint32, math.MaxUint32, 0), values, values)
	shift := Const(0, 2, 4, 6, 8, 10, 12, 14)
	n := Loop("y", 32, func(y Mem, _ Register) {
		for k := range 4 {
			v := YMM()
			VPBROADCASTW(Mem{Base: codes, Disp: 2 * k}, v)
			VPSRLVD(shift, v, v)
			VPERMILPS(v, values, v) // looks at two bits
			VADDPS(y.Offset(32*k), v, v)
			VMOVUPS(v, y.Offset(32*k))
		}
		ADDQ(U8(8), codes)
	})
	End(n)
}
