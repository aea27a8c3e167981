// Command nonfinite writes nonfinite_amd64.s.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	. "github.com/gradpress/gradpress/kernels/_generate/simd"
)

func main() {
	Start()
	Func("nonFiniteAVX2", "func(x []float32) (n int, bad uint32)",
		"nonFiniteAVX2 is bad != 0 if any of the first n = len(x)&^31 entries is an infinity or a NaN.")
	exp, one := Const(0x7f800000), Const(0x00800000)
	var sums [4]VecVirtual
	for k := range sums {
		sums[k] = YMM()
		VPXOR(sums[k], sums[k], sums[k])
	}
	n := Loop("x", 32, func(x Mem, _ Register) {
		for k := range sums {
			v := YMM()
			VPAND(x.Offset(32*k), exp, v)
			VPADDD(one, v, v) // carries into the sign bit
			VPOR(v, sums[k], sums[k])
		}
	})
	VPOR(sums[1], sums[0], sums[0])
	VPOR(sums[3], sums[2], sums[2])
	VPOR(sums[2], sums[0], sums[0])
	bad := GP32()
	VMOVMSKPS(sums[0], bad)
	Store(bad, ReturnIndex(1))
	End(n)
	Generate()
}
