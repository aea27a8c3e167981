// Command threshold writes threshold_amd64.s.
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
	Func("takeAboveAVX2", "func(idx []uint32, val, x []float32, at uint32, tau float32) (n, found int, most uint32)",
		"takeAboveAVX2 is takeAbove for each of the first n = len(x)&^7 entries' groups of eight that have one beyond tau. It appends found entries to",
		"idx and val, up to seven more being overwritten; most is the bits of the largest magnitude left.")
	idx, val, table := Ptr("idx"), Ptr("val"), GP64()
	LEAQ(Lefts(), table)
	tau, mag, sign := Spread("tau"), Const(math.MaxInt32), Const(1<<31)
	most, index := YMM(), Spread("at")
	VPXOR(most, most, most)
	VPADDD(Data(0, 1, 2, 3, 4, 5, 6, 7), index, index)
	found := GP64()
	XORQ(found, found)
	n := Loop("x", 8, func(x Mem, i Register) {
		v, over, mask := YMM(), YMM(), GP64()
		VMOVUPS(x, v)
		VPAND(v, mag, over)
		VPCMPGTD(tau, over, over) // magnitudes are ordered like their bits
		VMOVMSKPS(over, mask.As32())
		TESTL(mask.As32(), mask.As32())
		JZ(LabelRef("left"))
		s, t, order := YMM(), YMM(), YMM()
		VPAND(v, sign, s)
		VPAND(over, tau, t)
		VPOR(s, t, t)
		VSUBPS(t, v, v)
		VMOVUPS(v, x)
		VPOR(s, tau, s)
		VPMOVZXBD(Mem{Base: table, Index: mask, Scale: 8}, order)
		VPERMPS(s, order, s)
		VMOVUPS(s, Mem{Base: val, Index: found, Scale: 4})
		VPERMD(index, order, s)
		VMOVUPS(s, Mem{Base: idx, Index: found, Scale: 4})
		POPCNTL(mask.As32(), mask.As32())
		ADDQ(mask, found)
		Label("left")
		VPAND(mag, v, v)
		VPMAXUD(v, most, most)
		VPADDD(Data(8), index, index)
	})
	Store(found, ReturnIndex(1))
	Store(Fold(most), ReturnIndex(2))
	End(n)
	Generate()
}
