// Command onebit writes onebit_amd64.s.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	. "github.com/gradpress/gradpress/kernels/_generate/simd"
)

func main() {
	Start()
	packRow()
	packColumns()
	addRow()
	addColumns()
	Generate()
}

// signs has the sign bits of eight entries from x on where they are below zero, and not minus zero, and zero elsewhere.
func signs(x Mem, zero VecVirtual) VecVirtual {
	v := YMM()
	VADDPS(x, zero, v)
	return v
}

// apart gives four entries from x on as float64, those that are not below zero and those that are, each with zero for the others.
func apart(x Mem, zero VecVirtual) [2]VecVirtual {
	hi, lo := YMM(), YMM()
	VCVTPS2PD(x, lo)
	VMAXPD(lo, zero, hi)
	VMINPD(lo, zero, lo)
	return [2]VecVirtual{hi, lo}
}

func packRow() {
	Func("packRowAVX2", "func(signs []uint8, x []float32, hi, lo *[8]float64) (n, below int)",
		"packRowAVX2 is, for the first n = len(x)&^15 entries, with j = i%8",
		"",
		"\tif x[i] < 0 { bit i of signs = 1; lo[j] += float64(x[i]); below++ } else { bit i of signs = 0; hi[j] += float64(x[i]) }")
	to, hi, lo := Ptr("signs"), Ptr("hi"), Ptr("lo")
	zero, below := YMM(), GP64()
	VXORPS(zero, zero, zero)
	XORQ(below, below)
	var sums [2][2]VecVirtual
	for j := range 2 {
		for side, base := range []Register{hi, lo} {
			sums[j][side] = YMM()
			VMOVUPS(Mem{Base: base, Disp: 32 * j}, sums[j][side])
		}
	}
	n := Loop("x", 16, func(x Mem, i Register) {
		a, b := GP32(), GP32()
		VMOVMSKPS(signs(x, zero), a)
		VMOVMSKPS(signs(x.Offset(32), zero), b)
		SHLL(U8(8), b)
		ORL(b, a)
		MOVW(a.As16(), Mem{Base: to})
		ADDQ(U8(2), to)
		POPCNTL(a, a)
		ADDQ(a.As64(), below)
		for k := range 4 {
			for side, v := range apart(x.Offset(16*k), zero) {
				VADDPD(v, sums[k%2][side], sums[k%2][side])
			}
		}
	})
	for j := range 2 {
		for side, base := range []Register{hi, lo} {
			VMOVUPS(sums[j][side], Mem{Base: base, Disp: 32 * j})
		}
	}
	Store(below, ReturnIndex(1))
	End(n)
}

func packColumns() {
	Func("packColumnsAVX2", "func(signs []uint8, x []float32, hi, lo []float64, below []uint32) (n int)",
		"packColumnsAVX2 is, for the first n = len(x)&^7 entries,",
		"",
		"\tif x[i] < 0 { bit i of signs = 1; lo[i] += float64(x[i]); below[i]++ } else { bit i of signs = 0; hi[i] += float64(x[i]) }")
	to, hi, lo, below := Ptr("signs"), Ptr("hi"), Ptr("lo"), Ptr("below")
	zero := YMM()
	VXORPS(zero, zero, zero)
	n := Loop("x", 8, func(x Mem, i Register) {
		s, bits, count := signs(x, zero), GP32(), YMM()
		VMOVMSKPS(s, bits)
		MOVB(bits.As8(), Mem{Base: to})
		INCQ(to)
		VPSRLD(U8(31), s, s)
		VPADDD(Mem{Base: below, Index: i, Scale: 4}, s, count)
		VMOVUPS(count, Mem{Base: below, Index: i, Scale: 4})
		for k := range 2 {
			for side, v := range apart(x.Offset(16*k), zero) {
				sum := Mem{Base: []Register{hi, lo}[side], Index: i, Scale: 8, Disp: 32 * k}
				VADDPD(sum, v, v)
				VMOVUPS(v, sum)
			}
		}
	})
	End(n)
}

// addBits is y[i] += bit i of signs ? lo : hi for 32 entries, of levels that levels gives for a group of eight.
func addBits(y, bits Mem, shifts []VecVirtual, levels func(k int) (hi, lo Op)) {
	all := YMM()
	VPBROADCASTD(bits, all)
	for k, shift := range shifts {
		v := YMM()
		VPSLLVD(shift, all, v) // each entry's bit is where a choice looks
		hi, lo := levels(k)
		h, ok := hi.(VecVirtual)
		if !ok {
			h = YMM()
			VMOVUPS(hi, h)
		}
		VBLENDVPS(v, lo, h, v)
		VADDPS(y.Offset(32*k), v, v)
		VMOVUPS(v, y.Offset(32*k))
	}
}

// shifts move bit i of 32 to the sign of lane i%8, for the four groups of eight.
func shifts() (s []VecVirtual) {
	for k := range uint32(4) {
		at := 31 - 8*k
		s = append(s, Const(at, at-1, at-2, at-3, at-4, at-5, at-6, at-7))
	}
	return s
}

func addRow() {
	Func("addRowAVX2", "func(y []float32, signs []uint8, hi, lo float32) (n int)",
		"addRowAVX2 is y[i] += bit i of signs ? lo : hi, for the first n = len(y)&^31 entries.")
	bits := Ptr("signs")
	hi, lo, s := Spread("hi"), Spread("lo"), shifts()
	n := Loop("y", 32, func(y Mem, _ Register) {
		addBits(y, Mem{Base: bits}, s, func(int) (Op, Op) { return hi, lo })
		ADDQ(U8(4), bits)
	})
	End(n)
}

func addColumns() {
	Func("addColumnsAVX2", "func(y []float32, signs []uint8, hi, lo []float32) (n int)",
		"addColumnsAVX2 is y[i] += bit i of signs ? lo[i] : hi[i], for the first n = len(y)&^31 entries.")
	bits, hi, lo, s := Ptr("signs"), Ptr("hi"), Ptr("lo"), shifts()
	n := Loop("y", 32, func(y Mem, i Register) {
		addBits(y, Mem{Base: bits}, s, func(k int) (Op, Op) {
			return Mem{Base: hi, Index: i, Scale: 4, Disp: 32 * k}, Mem{Base: lo, Index: i, Scale: 4, Disp: 32 * k}
		})
		ADDQ(U8(4), bits)
	})
	End(n)
}
