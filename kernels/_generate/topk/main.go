// Command topk writes topk_amd64.s.
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
	Func("skipAVX2", "func(x []float32, low uint32) (n int, most uint32)",
		"skipAVX2 is the number n of entries at the front of x, in whole groups of 8 and at most len(x)&^31, before the first group that has one",
		"whose magnitude's bits are low > 0 or more; and the most of these bits among the n.")
	mag, most := Const(math.MaxInt32), YMM()
	VPXOR(most, most, most)
	last, t := Spread("low"), YMM() // the largest to skip
	VPCMPEQD(t, t, t)
	VPADDD(t, last, last)
	mask := GP32()
	hit := func(v VecVirtual, label string) {
		t := YMM()
		VPCMPGTD(last, v, t)
		VMOVMSKPS(t, mask)
		TESTL(mask, mask)
		JNZ(LabelRef(label))
		VPMAXUD(v, most, most)
	}
	done := GP64()
	n := Loop("x", 32, func(x Mem, i Register) {
		MOVQ(i, done)
		var v [4]VecVirtual
		for k := range v {
			v[k] = YMM()
			VPAND(x.Offset(32*k), mag, v[k])
		}
		VPMAXUD(v[1], v[0], v[0])
		VPMAXUD(v[3], v[2], v[2])
		VPMAXUD(v[2], v[0], v[0])
		hit(v[0], "found")
	})
	MOVQ(n, done)
	JMP(LabelRef("end"))
	Label("found")
	base := Ptr("x")
	v := YMM()
	VPAND(Mem{Base: base, Index: done, Scale: 4}, mag, v)
	hit(v, "end")
	ADDQ(U8(8), done)
	JMP(LabelRef("found"))
	Label("end")
	Store(Fold(most), ReturnIndex(1))
	End(done)
	Generate()
}
